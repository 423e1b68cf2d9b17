"""The manager's work, without any I/O: facts in, orders out. The simulator drives the same code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onward.core.checkpoints import Grant, publishable
from onward.core.conditions import Condition
from onward.core.facts import FaultReport, RankFacts, Stage
from onward.core.incident import Incident
from onward.core.job import OVER, Job, Phase, age, node_of
from onward.core.membership import Member, Outlook, beat_s, facts_s, nobody_left
from onward.core.recovery import QUIET_S, advance, quorum
from onward.core.saving import savers
from onward.core.standby import Ahead, to_prepare
from onward.core.succession import overtaken, resumed
from onward.manager.bulletin import Bulletin
from onward.manager.lost import Lost
from onward.manager.office import claim, outranked
from onward.manager.orders import Draft, Mandate, draft, kept_at, lost_ranks, orders
from onward.manager.pace import Pace
from onward.manager.record import job_of, record_of
from onward.manager.roll import Roll
from onward.manager.settings import ManagerSettings
from onward.manager.watch import Watch
from onward.wire.messages import (
    AgentFacts,
    Beat,
    CaptureStacks,
    Elsewhere,
    FaultAnswer,
    FaultRequest,
    IncidentNote,
    KeptAt,
    Note,
)

RESEND_S = 0.2  # orders that an agent does not show to have are sent again (or after a beat of its)
VERDICT_S = 2.0  # so long the end of a job is kept back for agents that have not taken it in


class ManagerLogic:
    """See the module's docstring. `out` collects what is to be sent: (agent or None for all, message)."""

    def __init__(self, settings: ManagerSettings, record: bytes = b"") -> None:
        self.settings = settings
        self.job: Job | None = None
        self.facts: dict[int, RankFacts] = {}
        self.out: list[tuple[str | None, Any]] = []
        self.closed: list[Incident] = []
        self.deposed = False  # somebody else is in office
        self.waiting = ""  # why nobody is in office yet
        self._roll = Roll(settings.nodes)
        self._refused: list[str] = []
        self._version = 0
        self._records = [record] if record else []
        self._terms = [0]
        self._watch = Watch(settings.hang_floor_s, settings.hang_first_s)
        self._back = False  # somebody was silent for long, and is heard again
        self._told_at: dict[str, float] = {}  # agent -> when it was last sent orders
        self._told_kept: dict[str, dict[int, KeptAt]] = {}  # agent -> where it was told to fetch local state
        self._resend_s = max(RESEND_S, facts_s(settings.nodes))
        self._beat_at = 0.0
        self._grant: Grant | None = None
        self._savers: dict[int, int] = {}
        self._bulletin = Bulletin(settings.rules, settings.wall_s)
        self._lost = Lost(settings, self._roll, self._bulletin)
        self._pace = Pace()
        self._conditions: list[Condition] = []
        self._ahead: Ahead = {}
        self._drafted: Draft | None = None
        self._base: tuple[int, ...] = ()  # age of the record that this manager has gone on from
        self._granted = False  # a majority has followed it: whatever others hold, this is what counts
        self._phase_since = 0  # version of the first orders of this phase
        self._lacking_since: float | None = None  # without a majority
        self._over_at: float | None = None
        self._verdict_given = settings.nodes == 1
        self._known: list[Member] = []  # see `members`
        self._known_of: Job | None = None
        self.changed_job = False

    # ------------------------------------------------------------------------------------------ facts in

    def forget(self, agent: str) -> None:
        """The connection to `agent` is new: its numbering starts again."""
        self._roll.connected(agent)
        if self.job is None:  # who was refused before it came may be the one that it waits for
            self.out += [(agent, Note(text=text, loud=True)) for text in self._refused]

    def refused(self, m: Member, why: str) -> None:
        """An agent that does not belong here was sent away. Its nodes are waited for, so people should know: once."""
        text = f"refused node {m.name}: {why}"
        if text not in self._refused:
            self._refused = [*self._refused, text][-8:]
            self.out.append((None, Note(text=text, loud=True)))

    def on_elsewhere(self, message: Elsewhere) -> None:
        """The job has begun without those who are here."""
        if self.job is None:
            self._note(f"the job goes on elsewhere; looking for it at {', '.join(message.managers).replace('|', ':')}")
            self.out.append((None, message))

    def hung_up(self, agent: str) -> None:
        """The connection to `agent` is no more."""
        self._roll.absent.add(agent)

    def declare_gone(self, agent: str) -> None:
        """Somebody who must know says that `agent` is dead, and its ranks with it."""
        self._roll.gone.add(agent)

    def on_facts(self, message: AgentFacts, now: float, think: bool = True) -> bool:
        """`think`: at once. Who hears many agents does it when told that there is something to think about."""
        me = message.agent.id
        if not self._roll.is_news(message) or self.deposed:
            return False
        news = self._roll.says_something(message)
        first = me not in self._roll.seen
        back = self._roll.hear(message, now)
        if self.job is None:
            self._terms.append(message.term)
            if message.record and message.record not in self._records:
                self._records.append(message.record)
            if think:
                self._try_office(now)
            if self.job is None:
                return True
            first = False  # all have been told
        elif why := outranked(message, self.job, self.settings.seat, None if self._granted else self._base):
            self._step_down(f"agent {message.agent.name} {why}")
            return True
        elif back:
            self._back = True
        self._catch_up(message, now)
        node = self._roll.place(self.job, me)
        for f in message.ranks:
            if node == node_of(self.job, f.rank):
                self.facts[f.rank] = f
                self._watch.see(f)
                self._pace.see(f)
        if think:
            self.think(now)
        behind = (message.term, message.orders_version) < (self.job.term, self._version)
        if first or (behind and now - self._told_at.get(me, -self._resend_s) >= self._resend_s):
            seat = self.settings.seat  # it hosts us, and is told who is here
            self._send_orders([me, seat] if first and seat != me and seat in self._roll.seen else [me], now)
        self._tell_where_newer_is_kept(message, now)
        return news or back or first

    def _tell_where_newer_is_kept(self, message: AgentFacts, now: float) -> None:
        """Whoever takes a place fetches what others keep of its ranks: also what came there, or was lost here, since
        it was told to."""
        job = self.job
        if job is None or job.phase is not Phase.PAUSING:
            return
        behind: set[str] = set()
        for r in {*message.kept, *(f.rank for f in message.ranks)}:
            f, home = self.facts.get(r), job.places[node_of(job, r)]
            if f is not None and home is not None and f.stage is Stage.PARKED and f.incarnation == job.incarnations[r]:
                at = kept_at(job, r, self._roll)
                if at is not None and self._told_kept.get(home.id, {}).get(r) != at:
                    behind.add(home.id)
        self._send_orders(sorted(behind), now)

    def on_fault_request(self, agent: str, request: FaultRequest, now: float) -> None:
        """Somebody on `agent`'s node publishes, clears or lists faults."""
        if self.job is None or self.deposed:
            why = f"the manager waits for {self.waiting or 'the agents'}; try again when the job has begun"
            self.out.append((agent, FaultAnswer(uid=request.uid, problems=[why])))
            return
        job, answer = self._bulletin.asked(self.job, request, self._roll.here(now), now)
        if job != self.job:
            for text in answer.said:
                self._note(text)
            self._keep(job, now)
        self.out.append((agent, answer))
        self.think(now)

    def _keep(self, job: Job, now: float) -> None:
        """The record has changed, and nothing is wanted of anybody: the agents hold the new one."""
        self.job = job
        self.changed_job = True
        self._conditions = self._all_conditions(now)
        self._tell_all(now)

    def _all_conditions(self, now: float) -> list[Condition]:
        assert self.job is not None
        return [*self._bulletin.conditions(self.job, now), *self._pace.conditions(self.job)]

    def _catch_up(self, message: AgentFacts, now: float) -> None:
        assert self.job is not None
        node = self._roll.place(self.job, message.agent.id)
        if node < 0 or message.generation <= self.job.generation:
            return
        ranks = [r for r in range(self.job.world_size) if node_of(self.job, r) == node]
        self._note(f"agent {message.agent.name} has heard of generation {message.generation}; opening a newer one")
        self.job = overtaken(self.job, message.generation, ranks, self.facts, now)
        self.changed_job = True
        self._tell_all(now, new_phase=True)

    def _step_down(self, why: str) -> None:
        self.deposed = True
        self._note(f"{why}; this manager steps down")

    def members(self) -> list[Member]:
        """The agents that somebody should know to be alive or dead."""
        job = self.job
        known = self._known_of
        if job is not None and known is not None and known.places is job.places and known.voters is job.voters:
            return self._known
        jobs = [job] if job is not None else self._recorded()
        voters = [m for j in jobs for e in j.voters for m in e.members]
        self._known = list({m.id: m for m in [*(m for j in jobs for m in j.places if m is not None), *voters]}.values())
        self._known_of = job
        return self._known

    @property
    def hopeless(self) -> str:
        """Why there will never be a majority, whoever comes."""
        newest = self.job or max(self._recorded(), key=age, default=None)
        if newest is None or newest.phase in OVER or not nobody_left(newest.voters, self._roll.gone):
            return ""
        lost = ", ".join(dict.fromkeys(m.name for e in newest.voters for m in e.members))
        return f"all who knew where it was are gone ({lost})"

    def _recorded(self) -> list[Job]:
        jobs = []
        for record in list(self._records):
            job = job_of(record)
            if job is not None:
                jobs.append(job)
            else:
                self._note("a generation record could not be read and was left aside")
                self._records.remove(record)
        return jobs

    def _try_office(self, now: float) -> None:
        claimed = claim(self._recorded(), self._terms, self.settings, self._roll, now)
        self.job, self.waiting, last = claimed.job, claimed.waiting, claimed.last
        if self.job is None:
            return
        if last is not None:
            self._roll.gone |= claimed.gone
            self._base = age(last)
            if last.last is not None:
                # Whoever wrote that it is over may have died before it could say so.
                self.out.append((None, IncidentNote(incident=last.last, open=False)))
            where = f"generation {last.generation}, phase {last.phase.value}"
            self._note(f"a new manager (term {self.job.term}) goes on at {where}")
        self._roll.expect([m.id for m in self.job.places if m is not None], now)
        self.facts = self._roll.ranks(self.job)
        self._ahead = self._roll.ahead(self.job)  # or they would end what they have prepared
        self._version += 1
        self._phase_since, self._lacking_since = self._version, now
        self.changed_job = True
        for message in list(self._roll.latest.values()):
            self._catch_up(message, now)
        self._send_orders(sorted(self._roll.seen), now)

    # ------------------------------------------------------------------------------------------ thinking

    def think(self, now: float) -> None:
        """Follow the facts; send orders when what is wanted has changed."""
        self._roll.mind_own_absence(now)
        if self.job is None and self._roll.first_at is not None and not self.deposed:
            self._try_office(now)
        if self.job is None or self.deposed:
            self._beat(now)
            return
        if self._back:
            self.job, self._back = resumed(self.job, now), False
        job, over = self._bulletin.expired(self.job, now)
        if over:
            self._keep(job, now)
        for text in over:
            self._note(text)
        self.facts |= self._lost.ranks(self.job, self.facts, now)
        self._look_for_hangs(now)
        for text in self._pace.judge(self.job, now, self._bulletin.time_of_day(now)):
            self._note(text)
        facts, reports = self._facts_to_judge(now)
        job = replace(self.job, limits=replace(self.job.limits, steps_s=self._watch.steps_s))
        outlook = self._outlook(now)
        if not self._has_majority(job, outlook, now):
            outlook = replace(outlook, lacking_s=now - (self._lacking_since or now))
            if self._must_yield(outlook):
                return self._step_down(f"no majority for {outlook.lacking_s:.1f} s, and others may have one")
        decision = advance(job, facts, now, outlook)
        for text in decision.why:
            self._note(text)
        for incident in decision.closed:
            self.closed.append(incident)
            self.out.append((None, IncidentNote(incident=incident, open=False)))
        if decision.job != job:
            if decision.job.incident is not None and decision.job.incident != job.incident:
                self.out.append((None, IncidentNote(incident=decision.job.incident, open=True)))
            self._take_up(self._bulletin.settled(replace(decision.job, limits=self.job.limits), reports), now)
        elif self._verdict_is_due(outlook, now):
            self._verdict_given = True
            self._tell_all(now)
        elif self._has_news(to_prepare(self.job, self.facts, outlook), now):
            self._tell_news(now)
        else:
            self._beat(now)

    def _has_news(self, ahead: Ahead, now: float) -> bool:
        """Nothing else is wanted of the job, but something of the agents."""
        told = (self._grant, self._savers, self._conditions, self._ahead)
        self._ahead = ahead
        return (*self._about_checkpoints(), self._all_conditions(now), ahead) != told

    def _facts_to_judge(self, now: float) -> tuple[dict[int, RankFacts], dict[int, FaultReport]]:
        """What the agents say, with what the manager itself knows; and the published faults among that."""
        job = self.job
        assert job is not None
        facts = self._watch.accuse_in(self.facts)
        for r in lost_ranks(job) if job.phase in (Phase.PAUSING, Phase.SAVING) else []:
            past = RankFacts(r, node_of(job, r), job.incarnations[r] - 1)  # known to nobody but its keeper
            facts[r] = replace(facts.get(r, past), local_steps=self._roll.kept_steps(job, r))
        reports = self._bulletin.reports(job, facts, now)
        return facts | {r: replace(facts[r], fault=report) for r, report in reports.items()}, reports

    def _take_up(self, job: Job, now: float) -> None:
        """Something else is wanted from now on."""
        before, self.job = self.job, job
        assert before is not None
        if job.switched != before.switched:  # what was said of the stand-in's processes is what is known of the ranks
            self.facts |= {r: f for r, f in self._roll.ranks(job).items() if r in job.switched}
        self._watch.forget(job)
        self.changed_job = True
        self._tell_news(now, new_phase=(before.phase, before.generation) != (job.phase, job.generation))

    def _verdict_is_due(self, outlook: Outlook, now: float) -> bool:
        """Who has heard the verdict leaves. So first all are to know how the job ended, or a majority after a while."""
        job = self.job
        assert job is not None
        if job.phase not in OVER or self._verdict_given:
            return False
        if self._over_at is None:
            self._over_at = now
        late = now - self._over_at > VERDICT_S
        return self._roll.know(job, self._phase_since) or (late and quorum(job, outlook).enough)

    def _beat(self, now: float) -> None:
        if now - self._beat_at >= beat_s(self.settings.nodes):
            self._beat_at = now
            job = self.job
            lacking = self._lacking_since is not None and now - self._lacking_since > QUIET_S
            term = job.term if job is not None and not lacking else 0
            self.out.append((None, Beat(term=term, waiting=job.waiting if job is not None else self.waiting)))

    def _outlook(self, now: float) -> Outlook:
        assert self.job is not None
        job = self.job
        present = self._roll.present(now)
        following = [m.agent.id for m in present if m.term == job.term and m.orders_version >= self._phase_since]
        sub_health = self.sub_health(now)
        return Outlook(
            deaf=self._lost.deaf(job, now),
            here=self._bulletin.fit(job, tuple(m.agent for m in present if not m.stopping), sub_health, now),
            following=frozenset(following),
            gone=frozenset(self._roll.gone),
            stopping=self._roll.all_leave(job),
            seat=self.settings.seat,
            sub_health=sub_health,
            stand_ins=self._roll.stand_ins(job),
            kept=self._roll.kept if job.phase is Phase.PAUSING else {},
            slow=self._pace.slow,
            ahead=self._roll.ahead(job),
        )

    def sub_health(self, now: float) -> dict[int, str]:
        """Nodes that are worse than they should be, and why."""
        assert self.job is not None
        slow = {node_of(self.job, rank): why for rank, why in self._pace.slow.items()}
        return slow | self._bulletin.sub_health(self.job, now)

    def _has_majority(self, job: Job, outlook: Outlook, now: float) -> bool:
        if quorum(job, outlook).enough:
            if not self._granted:
                self._granted = True
                self._tell_all(now)
            self._lacking_since = None
            return True
        if self._lacking_since is None:
            self._lacking_since = now
        return False

    def _must_yield(self, outlook: Outlook) -> bool:
        """Those who are with it are to look for another, which may have the majority.

        Where silence is to count as death this must be soon: who follows another manager is silent too.
        """
        s = self.settings
        limit_s = min(2 * s.node_timeout_s, s.fail_stop_s / 2) if s.fail_stop_s else 2 * s.node_timeout_s
        return s.nodes > 1 and outlook.lacking_s > limit_s and not self._verdict_given

    def _about_checkpoints(self) -> tuple[Grant | None, dict[int, int]]:
        """What may be published now, and which ranks are to copy their state: these follow from facts alone."""
        job = self.job
        assert job is not None
        if job.phase not in (Phase.RUNNING, Phase.FINISHING, Phase.LEAVING, Phase.SUCCEEDED, Phase.SAVING):
            return None, {}
        grant = publishable(self._roll.parts(job), job.generation, job.ranks)
        return grant, savers(job, self.facts) if job.phase is Phase.SAVING else {}

    def _look_for_hangs(self, now: float) -> None:
        job = self.job
        assert job is not None
        for f in self._watch.look(job, self.facts, self._roll.late_s(), self._lost.deaf(job, now), now):
            home = job.places[node_of(job, f.rank)]
            if home is not None:
                self.out.append((home.id, CaptureStacks(rank=f.rank, incarnation=f.incarnation)))

    @property
    def goodput(self) -> float:
        return self._roll.times().goodput

    @property
    def conditions(self) -> list[Condition]:
        """What is the matter with nodes and ranks, now."""
        return self._conditions

    @property
    def all_know(self) -> bool:
        """Every agent that may be alive has taken the latest orders."""
        return self.job is None or self._roll.know(self.job, self._version)

    def _note(self, text: str) -> None:
        self.out.append((None, Note(text=text)))

    # ------------------------------------------------------------------------------------------ orders out

    def record(self) -> bytes:
        return record_of(self.job) if self.job is not None else b""

    def _tell_news(self, now: float, new_phase: bool = False) -> None:
        self._grant, self._savers = self._about_checkpoints()
        self._conditions = self._all_conditions(now)
        self._tell_all(now, new_phase)

    def _tell_all(self, now: float, new_phase: bool = False) -> None:
        """A new version of the orders."""
        self._version += 1
        if new_phase:
            self._phase_since = self._version
        if self._lacking_since is None:
            self._beat_at = now  # this shows as well that it is in office
        self._send_orders(sorted(self._roll.seen), now)

    def _send_orders(self, agents: list[str], now: float) -> None:
        for agent in agents:
            self._told_at[agent] = now
            told = orders(self._draft(), agent, self.facts, self._roll)
            self._told_kept[agent] = told.kept_at
            self.out.append((agent, told))

    def _draft(self) -> Draft:
        """Made up once for each version."""
        job, drafted = self.job, self._drafted
        assert job is not None
        if drafted is None or drafted.mandate.version != self._version or drafted.job is not job:
            mandate = Mandate(
                version=self._version,
                seat=self.settings.seat,
                base=self._base,
                granted=self._granted,
                final=self._verdict_given,
                grant=self._grant,
                savers=self._savers,
                conditions=tuple(self._conditions),
                ahead=self._ahead,
            )
            drafted = self._drafted = draft(mandate, job, self.facts)
        return drafted
