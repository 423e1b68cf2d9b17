"""The manager's work, without any I/O: facts in, orders out. The simulator drives the same code."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from onward.core import health
from onward.core.agreement import Agreement, Part
from onward.core.checkpoints import Grant, SavePart, publishable
from onward.core.conditions import Condition
from onward.core.facts import FaultReport, Progress, RankFacts, Stage
from onward.core.incident import Incident
from onward.core.membership import ALL_VOTE, Electorate, Member, Outlook, council, facts_s, fill, vote
from onward.core.policy import Policy
from onward.core.published import Rules
from onward.core.recovery import (
    OVER,
    QUIET_S,
    RELOAD,
    Job,
    Limits,
    Phase,
    advance,
    age,
    current,
    exit_fault,
    inherited,
    new_job,
    node_of,
    overtaken,
    quorum,
    resumed,
    savers,
)
from onward.manager.bulletin import Bulletin
from onward.manager.pace import Pace
from onward.wire.messages import (
    AgentFacts,
    Beat,
    CaptureStacks,
    FaultAnswer,
    FaultRequest,
    Form,
    IncidentNote,
    Note,
    Orders,
    RankOrder,
    Save,
    Want,
)

CONFIRM_S = 0.15  # agents read pages now and then: nobody is blamed for what one look at them shows
ABSENT_S = 1.0  # an agent that was silent for longer has been away: its ranks are given their time anew (or 3 beats)
FRESH_S = 0.5  # facts older than this are no evidence against anybody (or 2 beats)
RESEND_S = 0.2  # orders that an agent does not show to have are sent again
OFFICE_S = 1.5  # a majority is enough to take office when the others have not come after so long
LEAVE_S = 1.0  # when all nodes of a job are told to end, the last hears of it within so long
VERDICT_S = 2.0  # so long the end of a job is kept back for agents that have not taken it in
BEAT_S = 1.0  # agents that hear nothing for some of these look for another manager
_FORMED = (Phase.FORMING, Phase.RUNNING, Phase.FINISHING, Phase.LEAVING, Phase.SUCCEEDED)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Job)


@dataclass(frozen=True)
class ManagerSettings:
    """What a manager is told at its start."""

    world_size: int
    nodes: int
    policies: tuple[Policy, ...]
    limits: Limits
    hang_floor_s: float = 0.7
    hang_first_s: float = 120.0
    node_timeout_s: float = 5.0  # a node that has been silent for longer is lost
    fail_stop_s: float = 0.0  # 0: silence is no proof of death; else the user's word that after so long it is
    job: str = ""  # its name, where it was given one
    seat: str = ""  # whoever started this manager, and can tell that one before it there is dead
    rules: Rules = field(default_factory=Rules)  # for published faults
    wall_s: float = 0.0  # what makes a time of day, the same everywhere, out of this process's clock


@dataclass(frozen=True)
class _Common:
    """What goes to every agent alike."""

    version: int
    job: Job
    age: list[int]
    members: int
    step: int
    record: bytes
    holders: frozenset[str]  # agents that hold the record: those who vote; empty: all
    store: str
    managers: list[str]


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
        self._latest: dict[str, AgentFacts] = {}
        self._seen: dict[str, int] = {}  # agent -> facts version
        self._gone: set[str] = set()
        self._absent: set[str] = set()  # not connected
        self._refused: list[str] = []
        self._version = 0
        self._records = [record] if record else []
        self._terms = [0]
        self._step_times: deque[float] = deque(maxlen=64)
        self._last_step: dict[int, int] = {}
        self._captured: set[tuple[int, int]] = set()
        self._accused: dict[int, FaultReport] = {}
        self._going: tuple[Phase, int] | None = None  # (phase, generation)
        self._going_since = 0.0
        self._suspects: tuple[int, ...] | None = None
        self._suspected_at = 0.0
        self._heard_at: dict[str, float] = {}  # agent -> when it last told its facts
        self._told_at: dict[str, float] = {}  # agent -> when it was last sent orders
        self._beat_at = 0.0
        self._first_at: float | None = None
        self._thought_at: float | None = None
        self._grant: Grant | None = None
        self._savers: dict[int, int] = {}
        self._leaving_since: dict[str, float] = {}
        self._bulletin = Bulletin(settings.rules, settings.wall_s)
        self._pace = Pace()
        self._conditions: list[Condition] = []
        beat_s = facts_s(settings.nodes)
        self._absent_s, self._fresh_s = max(ABSENT_S, 3 * beat_s), max(FRESH_S, 2 * beat_s)
        self._places: dict[str, int] = {}
        self._places_of: Job | None = None
        self._base: tuple[int, ...] = ()  # age of the record that this manager has gone on from
        self._granted = False  # a majority has followed it: whatever others hold, this is what counts
        self._phase_since = 0  # version of the first orders of this phase
        self._lacking_since: float | None = None  # without a majority
        self._over_at: float | None = None
        self._verdict_given = settings.nodes == 1
        self.changed_job = False

    # ------------------------------------------------------------------------------------------ facts in

    def forget(self, agent: str) -> None:
        """The connection to `agent` is new: its numbering starts again."""
        self._seen.pop(agent, None)
        self._absent.discard(agent)
        if self.job is None:  # who was refused before it came may be the one that it waits for
            self.out += [(agent, Note(text=text, loud=True)) for text in self._refused]

    def refused(self, m: Member, why: str) -> None:
        """An agent that does not belong here was sent away. Its nodes are waited for, so people should know: once."""
        text = f"refused node {m.name}: {why}"
        if text not in self._refused:
            self._refused = [*self._refused, text][-8:]
            self.out.append((None, Note(text=text, loud=True)))

    def hung_up(self, agent: str) -> None:
        """The connection to `agent` is no more."""
        self._absent.add(agent)

    def declare_gone(self, agent: str) -> None:
        """Somebody who must know says that `agent` is dead, and its ranks with it."""
        self._gone.add(agent)

    def on_facts(self, message: AgentFacts, now: float, think: bool = True) -> None:
        """`think`: at once. Who hears many agents does it when it has heard those who spoke together."""
        me = message.agent.id
        if message.version <= self._seen.get(me, 0) or self.deposed:
            return
        first = me not in self._seen
        back = now - self._heard_at.get(me, now) > self._absent_s
        self._heard_at[me] = now
        self._seen[me] = message.version
        self._latest[me] = message
        if self._first_at is None:
            self._first_at = now
        if message.stopping:
            self._leaving_since.setdefault(me, now)
        if self.job is None:
            self._terms.append(message.term)
            if message.record and message.record not in self._records:
                self._records.append(message.record)
            if think:
                self._try_office(now)
            if self.job is None:
                return
            first = False  # all have been told
        elif self._superseded(message):
            return self._step_down(f"agent {message.agent.name} follows a manager of term {message.term}")
        elif self._knows_more(message):
            return self._step_down(f"agent {message.agent.name} knows of a decision that this manager has not heard of")
        elif back:
            self.job = resumed(self.job, now)
        self._catch_up(message, now)
        node = self._place(me)
        for f in message.ranks:
            if node == node_of(self.job, f.rank):
                self.facts[f.rank] = f
                self._time_step(f)
                self._pace.see(f)
        if think:
            self.think(now)
        behind = (message.term, message.orders_version) < (self.job.term, self._version)
        if first or (behind and now - self._told_at.get(me, -RESEND_S) >= RESEND_S):
            self._send_orders([me], now)  # what was sent before may have been lost with its connection

    def on_fault_request(self, agent: str, request: FaultRequest, now: float) -> None:
        """Somebody on `agent`'s node publishes, clears or lists faults."""
        if self.job is None or self.deposed:
            why = f"the manager waits for {self.waiting or 'the agents'}; try again when the job has begun"
            self.out.append((agent, FaultAnswer(uid=request.uid, problems=[why])))
            return
        job, answer = self._bulletin.asked(self.job, request, self._here(now), now)
        if job != self.job:
            for text in answer.said:
                self._note(text)
            self._keep(job, now)
        self.out.append((agent, answer))
        self.think(now)

    def _keep(self, job: Job, now: float) -> None:
        """The record has changed, and nothing is wanted of anybody: the agents hold the new one."""
        self.job = job
        self._version += 1
        self.changed_job = True
        self._conditions = self._all_conditions(now)
        self._send_orders(sorted(self._seen), now)

    def _all_conditions(self, now: float) -> list[Condition]:
        assert self.job is not None
        return [*self._bulletin.conditions(self.job, now), *self._pace.conditions(self.job)]

    def _catch_up(self, message: AgentFacts, now: float) -> None:
        assert self.job is not None
        node = self._place(message.agent.id)
        if node < 0 or message.generation <= self.job.generation:
            return
        ranks = [r for r in range(self.job.world_size) if node_of(self.job, r) == node]
        self._note(f"agent {message.agent.name} has heard of generation {message.generation}; opening a newer one")
        self.job = overtaken(self.job, message.generation, ranks, self.facts, now)
        self._version += 1
        self._phase_since, self.changed_job = self._version, True
        self._send_orders(sorted(self._seen), now)

    def _step_down(self, why: str) -> None:
        self.deposed = True
        self._note(f"{why}; this manager steps down")

    def _superseded(self, message: AgentFacts) -> bool:
        assert self.job is not None
        other = message.seat not in ("", self.settings.seat)
        return message.term > self.job.term or (message.term == self.job.term and other)

    def _knows_more(self, message: AgentFacts) -> bool:
        """It decides from what it was told before it had a majority; what was decided since must not be undone."""
        assert self.job is not None
        return message.term < self.job.term and not self._granted and tuple(message.age) > self._base

    def _place(self, agent: str) -> int:
        """Of which node; -1: it stands by. Asked with every word from anybody."""
        job = self.job
        assert job is not None
        if self._places_of is None or self._places_of.places is not job.places:
            self._places = {m.id: i for i, m in enumerate(job.places) if m is not None}
            self._places_of = job
        return self._places.get(agent, -1)

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

    _known: list[Member] = []
    _known_of: Job | None = None

    def _recorded(self) -> list[Job]:
        jobs = []
        for record in list(self._records):
            try:
                jobs.append(_decoder.decode(record))
            except msgspec.MsgspecError:
                self._note("a generation record could not be read and was left aside")
                self._records.remove(record)
        return jobs

    def _try_office(self, now: float) -> None:
        """Go on from the newest record any agent holds, or begin, once enough of them are here."""
        jobs = self._recorded()
        term = max([*self._terms, *(j.term for j in jobs)]) + 1
        if jobs:
            self._succeed(max(jobs, key=age), term, now)
        else:
            self._begin(term, now)
        if self.job is not None:
            self._heard_at = dict.fromkeys([m.id for m in self.job.places if m is not None], now) | self._heard_at
            self.facts = {f.rank: f for f in self._all_ranks()}
            self._version += 1
            self._phase_since, self._lacking_since = self._version, now
            self.changed_job = True
            for message in list(self._latest.values()):
                self._catch_up(message, now)
            self._send_orders(sorted(self._seen), now)

    def _succeed(self, last: Job, term: int, now: float) -> None:
        members = [m for m in last.places if m is not None]
        heard = frozenset(self._seen)
        gone = frozenset(self._gone | self._presumed_dead(last))
        verdict = vote(last.voters, Outlook(following=heard, gone=gone))
        complete = all(m.id in heard or m.id in gone for m in members)
        patient = self._first_at is not None and now - self._first_at < OFFICE_S
        if not verdict.enough or (not complete and patient):
            self.waiting = verdict.why or "the other agents"
            return
        self.waiting = ""
        self._gone |= gone
        self._base = age(last)
        self.job = inherited(replace(last, limits=self.settings.limits), term, now)
        if last.last is not None:
            # Whoever wrote that it is over may have died before it could say so.
            self.out.append((None, IncidentNote(incident=last.last, open=False)))
        self._note(f"a new manager (term {term}) goes on at generation {last.generation}, phase {last.phase.value}")

    def _begin(self, term: int, now: float) -> None:
        s = self.settings
        places = fill((None,) * s.nodes, self._here(now), starting=True)
        if any(m.age for m in self._latest.values()):
            self.waiting = "those who hold the record of this job"
            return
        missing = places.count(None)
        if missing:
            self.waiting = f"{missing} of {s.nodes} nodes"
            return
        self.waiting = ""
        job = new_job(s.world_size, s.policies, s.limits, places)
        voters = (Electorate(council([m for m in places if m is not None]), s.seat, term),)
        self.job = replace(job, term=term, voters=voters, run=s.seat[:8])

    def _here(self, now: float) -> tuple[Member, ...]:
        """Agents that could hold a place."""
        return tuple(m.agent for m in self._latest.values() if not m.stopping and self._is_here(m.agent, now))

    def _all_ranks(self) -> list[RankFacts]:
        assert self.job is not None
        places = [(i, m.id) for i, m in enumerate(self.job.places) if m is not None and m.id in self._latest]
        return [f for i, agent in places for f in self._latest[agent].ranks if node_of(self.job, f.rank) == i]

    def _time_step(self, f: RankFacts) -> None:
        step = f.progress.step
        if f.stage is Stage.TRAINING and f.resumed and step > self._last_step.get(f.rank, -1) and f.progress.step_s > 0:
            self._last_step[f.rank] = step
            self._step_times.append(f.progress.step_s)

    # ------------------------------------------------------------------------------------------ thinking

    def think(self, now: float) -> None:
        """Follow the facts; send orders when what is wanted has changed."""
        self._mind_own_absence(now)
        if self.job is None and self._first_at is not None and not self.deposed:
            self._try_office(now)
        if self.job is None or self.deposed:
            self._beat(now)
            return
        job, over = self._bulletin.expired(self.job, now)
        if over:
            self._keep(job, now)
        for text in over:
            self._note(text)
        self._look_for_lost_nodes(now)
        self._look_for_hangs(now)
        for text in self._pace.judge(self.job, now, self._bulletin.time_of_day(now)):
            self._note(text)
        facts = {
            r: replace(f, fault=self._accused[r]) if r in self._accused and not f.exit_code and f.fault is None else f
            for r, f in self.facts.items()
        }
        for r in self._lost_ranks(self.job) if self.job.phase in (Phase.PAUSING, Phase.SAVING) else []:
            past = RankFacts(r, node_of(self.job, r), self.job.incarnations[r] - 1)  # known to nobody but its keeper
            facts[r] = replace(facts.get(r, past), local_steps=self._kept_steps(self.job, r))
        reports = self._bulletin.reports(self.job, facts, now)
        facts |= {r: replace(facts[r], fault=report) for r, report in reports.items()}
        steps_s = self._limit() if len(self._step_times) >= 3 else min(30.0, self.settings.hang_first_s)
        job = replace(self.job, limits=replace(self.job.limits, steps_s=steps_s))
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
            before = self.job
            self.job = self._bulletin.settled(replace(decision.job, limits=self.job.limits), reports)
            self._accused = {
                r: f for r, f in self._accused.items() if self.job.incarnations[r] == f.incarnation
            }
            self._version += 1
            if (before.phase, before.generation) != (self.job.phase, self.job.generation):
                self._phase_since = self._version
            self.changed_job = True
            self._grant, self._savers = self._about_checkpoints()
            self._conditions = self._all_conditions(now)
            self._send_orders(sorted(self._seen), now)
        elif self._verdict_is_due(outlook, now):
            self._verdict_given = True
            self._version += 1
            self._send_orders(sorted(self._seen), now)
        elif (*self._about_checkpoints(), self._all_conditions(now)) != (self._grant, self._savers, self._conditions):
            self._grant, self._savers = self._about_checkpoints()
            self._conditions = self._all_conditions(now)
            self._version += 1
            self._send_orders(sorted(self._seen), now)
        else:
            self._beat(now)

    def _verdict_is_due(self, outlook: Outlook, now: float) -> bool:
        """Who has heard the verdict leaves. So first all are to know how the job ended, or a majority after a while."""
        job = self.job
        assert job is not None
        if job.phase not in OVER or self._verdict_given:
            return False
        if self._over_at is None:
            self._over_at = now
        late = now - self._over_at > VERDICT_S
        return self._know(self._phase_since) or (late and quorum(job, outlook).enough)

    def _know(self, version: int) -> bool:
        """Every agent that may be alive has taken the orders of this version."""
        assert self.job is not None
        placed = [m.id for m in self.job.places if m is not None and m.id not in self._gone]
        seen = {a: (m.term, m.orders_version) for a, m in self._latest.items()}
        return all(seen.get(agent, (0, 0)) >= (self.job.term, version) for agent in placed)

    def _beat(self, now: float) -> None:
        if now - self._beat_at >= BEAT_S:
            self._beat_at = now
            job = self.job
            lacking = self._lacking_since is not None and now - self._lacking_since > QUIET_S
            term = job.term if job is not None and not lacking else 0
            self.out.append((None, Beat(term=term, waiting=job.waiting if job is not None else self.waiting)))

    def _mind_own_absence(self, now: float) -> None:
        """Who was not running himself has no right to call others silent."""
        last, self._thought_at = self._thought_at, now
        away = now - last if last is not None else 0.0
        if away > self._absent_s / 2:
            self._heard_at = {agent: at + away for agent, at in self._heard_at.items()}

    def _outlook(self, now: float) -> Outlook:
        assert self.job is not None
        job = self.job
        following = [
            agent
            for agent, m in self._latest.items()
            if m.term == job.term and m.orders_version >= self._phase_since and self._is_here(m.agent, now)
        ]
        slow = self._pace.slow
        sub_health = {node_of(job, rank): why for rank, why in slow.items()} | self._bulletin.sub_health(job, now)
        return Outlook(
            deaf=self._deaf(now),
            here=self._bulletin.fit(job, self._here(now), sub_health, now),
            following=frozenset(following),
            gone=frozenset(self._gone),
            stopping=self._all_leave(),
            seat=self.settings.seat,
            sub_health=sub_health,
            stand_ins=self._stand_ins(job),
            slow=slow,
        )

    def _stand_ins(self, job: Job) -> dict[int, RankFacts]:
        latest = self._latest.get(job.switch.member.id) if job.switch is not None else None
        return {f.rank: f for f in latest.ranks} if latest is not None else {}

    def _is_here(self, m: Member, now: float) -> bool:
        """Connected, and lately heard of."""
        return m.id not in self._absent and m.id not in self._gone and self._silence(m, now) < self._absent_s

    def _has_majority(self, job: Job, outlook: Outlook, now: float) -> bool:
        if quorum(job, outlook).enough:
            if not self._granted:
                self._granted = True
                self._version += 1
                self._send_orders(sorted(self._seen), now)
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

    def _presumed_dead(self, last: Job) -> set[str]:
        """By the user's word: everybody who is alive has been looking for a manager for so long, and would be here."""
        limit_s = self.settings.fail_stop_s
        if not limit_s or any(m.lonely_s < limit_s for m in self._latest.values()):
            return set()
        return {m.id for e in last.voters for m in e.members if m.id not in self._seen}

    def _all_leave(self) -> bool:
        """One node that is told to end leaves the job to the others; when all are, the job is to end."""
        assert self.job is not None
        placed = [m.id for m in self.job.places if m is not None and m.id in self._latest]
        return bool(placed) and all(self._latest[agent].stopping for agent in placed)

    def _parts(self, job: Job) -> dict[int, list[SavePart]]:
        """What each node has written of checkpoints."""
        placed = [(i, m.id) for i, m in enumerate(job.places) if m is not None and m.id in self._latest]
        return {node: self._latest[agent].parts for node, agent in placed}

    def _silence(self, m: Member, now: float) -> float:
        return now - self._heard_at.get(m.id, now)

    def _about_checkpoints(self) -> tuple[Grant | None, dict[int, int]]:
        """What may be published now, and which ranks are to copy their state: these follow from facts alone."""
        job = self.job
        assert job is not None
        if job.phase not in (Phase.RUNNING, Phase.FINISHING, Phase.LEAVING, Phase.SUCCEEDED, Phase.SAVING):
            return None, {}
        grant = publishable(self._parts(job), job.generation, job.ranks)
        return grant, savers(job, self.facts) if job.phase is Phase.SAVING else {}

    def _deaf(self, now: float) -> bool:
        assert self.job is not None
        silent = [m for m in self.job.places if m is not None and self._silence(m, now) > self._fresh_s]
        return any(not self._why_lost(m, now) for m in silent)  # who is lost will not be heard again

    def _look_for_lost_nodes(self, now: float) -> None:
        """The ranks of a node that is gone, leaves, or has been silent for long, are lost with it."""
        job = self.job
        assert job is not None
        for node, m in enumerate(job.places):
            why = self._why_lost(m, now) if m is not None else ""
            if m is None or not why:
                continue
            text = f"node {node}, {m.name}: {why}"
            for rank in [r for r in range(job.world_size) if node_of(job, r) == node]:
                number = job.incarnations[rank]
                old = self.facts.get(rank, RankFacts(rank, node, number))
                if old.incarnation == number and old.exit_code == 0:
                    continue  # its rank had ended well: nothing of it is lost
                since = 0.0 if m.id in self._gone else self._silence(m, now)
                fault = FaultReport("node", rank, number, step=old.progress.step, text=text, at=now, since_s=since)
                self.facts[rank] = replace(
                    old, incarnation=number, stage=Stage.EXITED, fault=fault, local_steps=(), memory=(), kept=()
                )

    def _why_lost(self, m: Member, now: float) -> str:
        latest = self._latest.get(m.id)
        if m.id in self._gone:
            return "its process is gone"
        leaving = latest is not None and latest.stopping and not self._all_leave()
        if leaving and now - self._leaving_since.get(m.id, now) > LEAVE_S:
            return "it was told to leave"
        assert self.job is not None
        separated = self._bulletin.why_separated(self.job, m.id, now)
        if separated:
            return separated
        silent = self._silence(m, now)
        if silent > self.settings.node_timeout_s and self.settings.nodes > 1:
            return f"no sign of life for {silent:.1f} s"
        return ""

    def _limit(self) -> float:
        s = self.settings
        away = self._absent | self._gone  # what they said last would count for ever
        late_s = max((m.late_s for agent, m in self._latest.items() if agent not in away), default=0.0)
        return health.limit_s(tuple(self._step_times), s.hang_floor_s, s.hang_first_s, late_s)

    def _look_for_hangs(self, now: float) -> None:
        job = self.job
        assert job is not None
        here = current(job, self.facts)
        if job.phase is Phase.PAUSING and job.deadline is not None and now > job.deadline - job.limits.pause_s / 2:
            late = [f for f in here.values() if f.stage in (Stage.TRAINING, Stage.DONE, Stage.LEFT)]
            self._ask_for_stacks(late)
        if job.phase is Phase.PAUSING:
            self._look_for_silence(here, now)
        if job.phase is Phase.FORMING and job.deadline is not None and now > job.deadline - job.limits.form_s * 0.8:
            late = [f for f in here.values() if f.stage is not Stage.FORMED or f.generation != job.generation]
            self._ask_for_stacks(late)
        for f in here.values():
            if f.library and f.alive and f.progress.beat_s > self.settings.hang_first_s:
                self._accuse(f, "hang", f"its process has shown no life for {f.progress.beat_s:.1f} s", now)
        found = self._suspicion(job, here, now)
        suspects = found.ranks if found is not None else None
        if suspects != self._suspects:
            self._suspects, self._suspected_at = suspects, now
        if found is None:
            return
        self._ask_for_stacks([here[r] for r in found.ranks])
        if not found.certain or now - self._suspected_at < CONFIRM_S:
            return
        for r in found.ranks:
            if here[r].alive:
                self._accuse(here[r], "hang", found.why, now, since_s=found.waited_s)
            else:  # it has ended well, and the others wait for it
                self._accused[r] = replace(exit_fault(here[r], here), at=now, since_s=found.waited_s)
        if not found.ranks:
            first = here[min(here)]
            self._accuse(first, "stall", found.why, now, retryable="communication", since_s=found.waited_s)

    def _look_for_silence(self, here: dict[int, RankFacts], now: float) -> None:
        """A rank that is waited for at the fence and shows no life at all is stopped: no need to wait it out."""
        limit = max(1.0, self._limit())
        for f in here.values():
            silent = f.progress.beat_s
            if f.stage in (Stage.TRAINING, Stage.DONE, Stage.LEFT) and f.alive and silent > limit:
                self._ask_for_stacks([f])
                self._accuse(f, "hang", f"its process has shown no life for {silent:.1f} s during a pause", now)

    def _suspicion(self, job: Job, here: dict[int, RankFacts], now: float) -> health.Suspicion | None:
        """Who holds the others up, by what all of them show.

        A rank that has ended well too early is one of them: where connections do not tell, the others wait for it.
        """
        if self._going != (job.phase, job.generation):
            self._going, self._going_since = (job.phase, job.generation), now
        if self._deaf(now):
            return None
        stages = (Stage.FORMED, Stage.READY, Stage.TRAINING, Stage.DONE, Stage.AFTER, Stage.LEFT)
        members = {r: f for r, f in here.items() if f.stage in stages or f.exit_code == 0}
        if job.phase not in (Phase.RUNNING, Phase.FINISHING) or len(members) < len(job.ranks):
            return None
        if any(f.generation != job.generation for f in members.values()):
            return None
        waits = (Stage.DONE, Stage.LEFT, Stage.READY)  # for the others, and when all are there for us
        if job.phase is Phase.RUNNING and all(f.stage in waits for f in members.values()):
            return None
        progress = {
            r: f.progress if f.alive else Progress(step=f.progress.step, idle_s=now) for r, f in members.items()
        }
        if job.phase is Phase.RUNNING:  # who is through the loop waits for the others, as at a gate
            last = max(p.launched for p in progress.values())
            done = [r for r, f in members.items() if f.stage in waits]
            progress |= {r: replace(progress[r], gate=True, section=False, launched=last) for r in done}
            progress |= {r: replace(progress[r], section=False) for r, f in members.items() if f.stage is Stage.FORMED}
        if not all(f.alive for f in members.values()):  # slowness may be legal, but who is gone does not come back
            progress = {r: replace(p, section=False) for r, p in progress.items()}
        begun = all(p.step >= 0 for p in progress.values())
        limit = self._limit() if begun and job.phase is Phase.RUNNING else job.limits.start_s
        found = health.suspect(progress, limit)
        if found is not None and now - self._going_since < found.waited_s:
            waited = now - self._going_since  # nobody can have waited longer in this generation
            found = replace(found, waited_s=waited) if waited >= limit / 2 else None
        if found is None:
            self._captured.clear()
        return found

    def _accuse(
        self, f: RankFacts, kind: str, why: str, now: float, retryable: str = "", since_s: float = 0.0
    ) -> None:
        step = f.progress.step
        fault = FaultReport(
            kind, f.rank, f.incarnation, step=step, text=why, retryable=retryable, at=now, since_s=since_s
        )
        self._accused[f.rank] = fault

    def _ask_for_stacks(self, suspects: list[RankFacts]) -> None:
        for f in suspects:
            if (f.rank, f.incarnation) not in self._captured:
                self._captured.add((f.rank, f.incarnation))
                home = self.job.places[node_of(self.job, f.rank)] if self.job is not None else None
                if home is not None:
                    self.out.append((home.id, CaptureStacks(rank=f.rank, incarnation=f.incarnation)))

    @property
    def conditions(self) -> list[Condition]:
        """What is the matter with nodes and ranks, now."""
        return self._conditions

    @property
    def all_know(self) -> bool:
        """Every agent that may be alive has taken the latest orders."""
        return self.job is None or self._know(self._version)

    @property
    def wake_at(self) -> float | None:
        return self.job.deadline if self.job is not None else None

    def _note(self, text: str) -> None:
        self.out.append((None, Note(text=text)))

    # ------------------------------------------------------------------------------------------ orders out

    def record(self) -> bytes:
        return _encoder.encode(self.job) if self.job is not None else b""

    def _send_orders(self, agents: list[str], now: float) -> None:
        for agent in agents:
            self._told_at[agent] = now
            self.out.append((agent, self.orders(agent)))

    def _common(self, job: Job) -> _Common:
        """What the orders of all agents have in common, made up once for each version."""
        if self._said is None or self._said.version != self._version or self._said.job is not job:
            members = [m for m in job.places if m is not None]
            voters = [m for e in job.voters for m in e.members]
            few = len(members) <= ALL_VOTE
            doors = [m.manager for m in (members if few else voters) if m.manager]
            self._said = _Common(
                version=self._version,
                job=job,
                age=[int(n) for n in age(job)],
                members=len(job.ranks),
                step=max((f.progress.step for f in self.facts.values()), default=0),
                record=self.record(),
                holders=frozenset() if few else frozenset(m.id for m in voters),
                store=members[0].peer if members else "",
                managers=list(dict.fromkeys(doors)),
            )
        return self._said

    _said: _Common | None = None

    def orders(self, agent: str) -> Orders:
        """All that is wanted of `agent`, now."""
        job = self.job
        assert job is not None
        node = self._place(agent)
        under_way = job.switch is not None and job.phase in (Phase.RUNNING, Phase.PAUSING)
        stands_in = under_way and job.switch is not None and job.switch.member.id == agent
        if stands_in and job.switch is not None:
            node = job.switch.node
        local = job.world_size // max(1, len(job.places))
        ranks = range(node * local, (node + 1) * local) if node >= 0 else range(0)
        common = self._common(job)
        verdict = {Phase.SUCCEEDED: 0, Phase.FAILED: 1, Phase.STOPPED: 143}.get(job.phase)
        return Orders(
            term=job.term,
            seat=self.settings.seat,
            version=self._version,
            age=common.age,
            base=[int(n) for n in self._base],
            granted=self._granted,
            generation=job.generation,
            ranks=[self._stand_in_order(job, r) if stands_in else self._rank_order(job, r) for r in ranks],
            node=node,
            world_size=job.world_size,
            members=common.members,
            step=common.step,
            run=job.run,
            attempt=job.attempt,
            phase=job.phase.value,
            exit_code=verdict if self._verdict_given else None,
            reason=job.reason,
            root_cause=job.root_cause,
            save=self._save(job, node),
            publish=self._grant if self._grant is not None and self._grant.node == node else None,
            job=common.record if not common.holders or agent in common.holders else b"",
            kept_at={r: at for r in ranks if (at := self._kept_at(job, r))},
            store=common.store if job.phase in _FORMED or job.soft else "",
            master=f"{job.places[0].address}|{job.places[0].master_port}" if job.places[0] is not None else "",
            managers=common.managers,
            waiting=job.waiting,
            conditions=self._conditions,
        )

    def _save(self, job: Job, node: int) -> Save | None:
        if job.phase is not Phase.SAVING or job.agreement is None:
            return None
        m = job.places[node]
        adopted = [r for r in self._lost_ranks(job) if m is not None and self._keeper(job, r) == m.id]
        disk = job.ending != RELOAD
        return Save(step=job.agreement.step, disk=disk, again=job.between, reason=job.ending, adopted=adopted)

    def _lost_ranks(self, job: Job) -> list[int]:
        return [r for r in range(job.world_size) if job.places and job.places[node_of(job, r)] is None]

    def _keeper(self, job: Job, rank: int) -> str:
        """The agent with a place in the job that keeps the newest local state of a rank of a lost node."""
        placed = [m.id for m in job.places if m is not None and m.id in self._latest and m.id not in self._absent]
        keepers = [a for a in placed if self._latest[a].kept.get(rank)]
        return max(keepers, key=lambda a: (max(self._latest[a].kept[rank]), a), default="")

    def _kept_steps(self, job: Job, rank: int) -> tuple[int, ...]:
        keeper = self._keeper(job, rank)
        return tuple(self._latest[keeper].kept[rank]) if keeper else ()

    def _stand_in_order(self, job: Job, rank: int) -> RankOrder:
        """Get ready, follow, and wait."""
        number = job.incarnations[rank] + 1
        there = current(job, self.facts).get(rank)
        follow = there.feed if there is not None else ""
        return RankOrder(
            rank=rank, incarnation=number, generation=job.generation, want="pause", soft=True, follow=follow
        )

    def _rank_order(self, job: Job, rank: int) -> RankOrder:
        wants: dict[Phase, Want] = {
            Phase.STARTING: "start",
            Phase.RUNNING: "run",
            Phase.PAUSING: "pause",
            Phase.SAVING: "save",
            Phase.FORMING: "form",
            Phase.FINISHING: "finish",
            Phase.LEAVING: "leave",
            Phase.SUCCEEDED: "leave",
            Phase.FAILED: "stop",
            Phase.STOPPED: "stop",
        }
        want = wants[job.phase]
        if rank in job.absent:  # one that prepares to join later
            want = "pause" if job.phase in (Phase.RUNNING, Phase.PAUSING, Phase.FORMING) else "stop"
        if want == "save" and rank not in self._savers.values():
            want = "pause"  # nothing more is wanted of it
        form = self._form(job, rank) if want in ("form", "run", "save") else None
        why = job.incident.why[-1] if job.incident is not None and job.incident.why else ""
        return RankOrder(
            rank=rank,
            incarnation=job.incarnations[rank],
            generation=job.generation,
            want=want,
            form=form,
            soft=job.soft and want == "pause",
            why=why,
        )

    def _kept_at(self, job: Job, rank: int) -> str:
        """The agent that keeps the local state of a rank whose own node has none of it."""
        if job.phase is not Phase.PAUSING and rank not in job.absent:
            return ""
        own = self.facts.get(rank)
        if own is not None and own.incarnation == job.incarnations[rank] and own.local_steps:
            return ""
        home = job.places[node_of(job, rank)]
        for m in self._latest.values():
            if m.kept.get(rank) and (home is None or m.agent.id != home.id) and m.agent.id not in self._absent:
                return m.agent.peer
        return ""

    def _partner(self, job: Job, rank: int) -> str:
        """Another node keeps a copy of the rank's local state where the loss of a node is to be survived."""
        node, n = node_of(job, rank), len(job.places)
        if Policy.RECOVER not in job.policies:
            return ""
        others = [job.places[(node + i) % n] for i in range(1, n)]
        return next((m.peer for m in others if m is not None), "")

    def _givers(self, a: Agreement) -> dict[int, int]:
        """Who is given state by whom."""
        if self._given is None or self._given[0] is not a:
            receivers = [r for r, p in a.parts.items() if p is Part.RECEIVE]
            self._given = (a, {r: a.sources[i % len(a.sources)] for i, r in enumerate(receivers)})
        return self._given[1]

    _given: tuple[Agreement, dict[int, int]] | None = None

    def _form(self, job: Job, rank: int) -> Form:
        a = job.agreement
        partner = self._partner(job, rank)
        if a is None:
            return Form(world_size=job.world_size, begin=job.begun, partner=partner)
        part = a.parts[rank]
        giver = self._givers(a)
        source = ""
        if part is Part.RECEIVE:
            given_by = self.facts.get(giver[rank])
            source = given_by.serve if given_by is not None else ""
        return Form(
            world_size=job.world_size,
            members=list(job.ranks) if job.absent else [],
            fresh=rank in job.joining and part is Part.RECEIVE,
            past=any(r == rank and begun >= a.step for r, begun in job.past),
            step=a.step,
            part=part.value,
            source=source,
            serves=sum(1 for g in giver.values() if g == rank),
            between=job.between,
            through=job.through,
            partner=partner,
            light=a.light,
            error=_own_error(job, rank),
        )


def _own_error(job: Job, rank: int) -> str:
    faults = job.incident.faults if job.incident is not None else ()
    return next((f.text for f in faults if f.rank == rank and f.kind == "exception" and not f.retryable), "")
