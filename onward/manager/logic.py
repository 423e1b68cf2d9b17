"""The manager's work, without any I/O: facts in, orders out. The simulator drives the same code."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from onward.core import health
from onward.core.agreement import Part
from onward.core.facts import FaultReport, Progress, RankFacts, Stage
from onward.core.incident import Incident
from onward.core.policy import Policy
from onward.core.recovery import Job, Limits, Phase, advance, age, current, new_job, resumed
from onward.wire.messages import AgentFacts, CaptureStacks, Form, IncidentNote, Note, Orders, RankOrder, Want

CONFIRM_S = 0.15  # agents read pages now and then: nobody is blamed for what one look at them shows
ABSENT_S = 1.0  # an agent that was silent for longer has been away: its ranks are given their time anew
FRESH_S = 0.5  # facts older than this are no evidence against anybody
RESEND_S = 0.2  # orders that an agent does not show to have are sent again
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


class ManagerLogic:
    """See the module's docstring. `out` collects what is to be sent: (node or None for all, message)."""

    def __init__(self, settings: ManagerSettings, record: bytes = b"") -> None:
        self.settings = settings
        self.job: Job | None = None
        self.facts: dict[int, RankFacts] = {}
        self.out: list[tuple[int | None, Any]] = []
        self.closed: list[Incident] = []
        self._seen: dict[int, int] = {}  # node -> facts version
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
        self._heard_at: dict[int, float] = {}  # node -> when it last told its facts
        self._late_s: dict[int, float] = {}  # node -> how late its own ticks come
        self._told_at: dict[int, float] = {}  # node -> when it was last sent orders
        self.changed_job = False

    # ------------------------------------------------------------------------------------------ facts in

    def forget(self, node: int) -> None:
        """The connection to `node` is new: its numbering starts again."""
        self._seen.pop(node, None)

    def on_facts(self, message: AgentFacts, now: float) -> None:
        if message.version <= self._seen.get(message.node, 0):
            return
        first = message.node not in self._seen
        back = now - self._heard_at.get(message.node, now) > ABSENT_S
        self._heard_at[message.node] = now
        self._seen[message.node] = message.version
        self._late_s[message.node] = message.late_s
        for f in message.ranks:
            self.facts[f.rank] = f
            self._time_step(f)
        if self.job is None:
            self._terms.append(message.term)
            if message.record:
                self._records.append(message.record)
            if len(self._seen) < self.settings.nodes:
                return
            self._take_office(now)
        elif back:
            self.job = resumed(self.job, now)
        self.think(now)
        assert self.job is not None
        behind = (message.term, message.orders_version) < (self.job.term, self._version)
        if first or (behind and now - self._told_at.get(message.node, -RESEND_S) >= RESEND_S):
            self._send_orders([message.node], now)  # what was sent before may have been lost with its connection

    def _take_office(self, now: float) -> None:
        """All agents are here: go on from the newest record any of them holds, or begin."""
        jobs = []
        for record in self._records:
            try:
                jobs.append(_decoder.decode(record))
            except msgspec.MsgspecError:
                self._note("a generation record could not be read and was left aside")
        term = max([*self._terms, *(j.term for j in jobs)]) + 1
        if jobs:
            best = max(jobs, key=age)
            self.job = resumed(replace(best, term=term, limits=self.settings.limits), now)
            self._note(f"a new manager (term {term}) goes on at generation {best.generation}, phase {best.phase.value}")
        else:
            s = self.settings
            self.job = replace(new_job(s.world_size, s.policies, s.limits), term=term)
        self._version += 1
        self.changed_job = True

    def _time_step(self, f: RankFacts) -> None:
        step = f.progress.step
        if f.stage is Stage.TRAINING and f.resumed and step > self._last_step.get(f.rank, -1) and f.progress.step_s > 0:
            self._last_step[f.rank] = step
            self._step_times.append(f.progress.step_s)

    # ------------------------------------------------------------------------------------------ thinking

    def think(self, now: float) -> None:
        """Follow the facts; send orders when what is wanted has changed."""
        if self.job is None:
            return
        self._look_for_hangs(now)
        facts = {
            r: replace(f, fault=self._accused[r]) if r in self._accused and not f.exit_code and f.fault is None else f
            for r, f in self.facts.items()
        }
        steps_s = self._limit() if len(self._step_times) >= 3 else min(30.0, self.settings.hang_first_s)
        job = replace(self.job, limits=replace(self.job.limits, steps_s=steps_s))
        decision = advance(job, facts, now, self._deaf(now))
        for text in decision.why:
            self._note(text)
        for incident in decision.closed:
            self.closed.append(incident)
            self.out.append((None, IncidentNote(incident=incident, open=False)))
        if decision.job != job:
            if decision.job.incident is not None and decision.job.incident != job.incident:
                self.out.append((None, IncidentNote(incident=decision.job.incident, open=True)))
            self.job = replace(decision.job, limits=self.job.limits)
            self._accused = {
                r: f for r, f in self._accused.items() if self.job.incarnations[r] == f.incarnation
            }
            self._version += 1
            self.changed_job = True
            self._send_orders(sorted(self._seen), now)

    def _deaf(self, now: float) -> bool:
        return any(now - at > FRESH_S for at in self._heard_at.values())

    def _limit(self) -> float:
        s = self.settings
        late_s = max(self._late_s.values(), default=0.0)
        return health.limit_s(tuple(self._step_times), s.hang_floor_s, s.hang_first_s, late_s)

    def _look_for_hangs(self, now: float) -> None:
        job = self.job
        assert job is not None
        here = current(job, self.facts)
        if job.phase is Phase.PAUSING and job.deadline is not None and now > job.deadline - job.limits.pause_s / 2:
            late = [f for f in here.values() if f.stage in (Stage.TRAINING, Stage.DONE)]
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
            self._accuse(here[r], "hang" if here[r].alive else "exit", found.why, now, since_s=found.waited_s)
        if not found.ranks:
            first = here[min(here)]
            self._accuse(first, "stall", found.why, now, retryable="communication", since_s=found.waited_s)

    def _look_for_silence(self, here: dict[int, RankFacts], now: float) -> None:
        """A rank that is waited for at the fence and shows no life at all is stopped: no need to wait it out."""
        limit = max(1.0, self._limit())
        for f in here.values():
            silent = f.progress.beat_s
            if f.stage in (Stage.TRAINING, Stage.DONE) and f.alive and silent > limit:
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
        stages = (Stage.FORMED, Stage.TRAINING, Stage.DONE)
        members = {r: f for r, f in here.items() if f.stage in stages or f.exit_code == 0}
        if job.phase not in (Phase.RUNNING, Phase.FINISHING) or len(members) < job.world_size:
            return None
        if any(f.generation != job.generation for f in members.values()):
            return None
        if job.phase is Phase.RUNNING and all(f.stage is Stage.DONE for f in members.values()):
            return None
        progress = {
            r: f.progress if f.alive else Progress(step=f.progress.step, idle_s=now) for r, f in members.items()
        }
        if job.phase is Phase.RUNNING:  # who is through the loop waits for the others, as at a gate
            last = max(p.launched for p in progress.values())
            done = [r for r, f in members.items() if f.stage is Stage.DONE]
            progress |= {r: replace(progress[r], gate=True, section=False, launched=last) for r in done}
            progress |= {r: replace(progress[r], section=False) for r, f in members.items() if f.stage is Stage.FORMED}
        if not all(f.alive for f in members.values()):  # slowness may be legal, but who is gone does not come back
            progress = {r: replace(p, section=False) for r, p in progress.items()}
        begun = all(p.step >= 0 for p in progress.values())
        limit = self._limit() if begun else job.limits.start_s
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
                self.out.append((f.node, CaptureStacks(rank=f.rank, incarnation=f.incarnation)))

    @property
    def wake_at(self) -> float | None:
        return self.job.deadline if self.job is not None else None

    def _note(self, text: str) -> None:
        self.out.append((None, Note(text=text)))

    # ------------------------------------------------------------------------------------------ orders out

    def record(self) -> bytes:
        return _encoder.encode(self.job) if self.job is not None else b""

    def _send_orders(self, nodes: list[int], now: float) -> None:
        for node in nodes:
            self._told_at[node] = now
            self.out.append((node, self.orders(node)))

    def orders(self, node: int) -> Orders:
        """All that is wanted of `node`, now."""
        job = self.job
        assert job is not None
        ranks = sorted(r for r in range(job.world_size) if self._node_of(r) == node)
        exit_code = {Phase.SUCCEEDED: 0, Phase.FAILED: 1}.get(job.phase)
        return Orders(
            term=job.term,
            version=self._version,
            generation=job.generation,
            ranks=[self._rank_order(job, r) for r in ranks],
            attempt=job.attempt,
            phase=job.phase.value,
            exit_code=exit_code,
            reason=job.reason,
            root_cause=job.root_cause,
            job=self.record(),
        )

    def _node_of(self, rank: int) -> int:
        return rank // (self.settings.world_size // self.settings.nodes)

    def _rank_order(self, job: Job, rank: int) -> RankOrder:
        wants: dict[Phase, Want] = {
            Phase.STARTING: "start",
            Phase.RUNNING: "run",
            Phase.PAUSING: "pause",
            Phase.FORMING: "form",
            Phase.FINISHING: "finish",
            Phase.SUCCEEDED: "finish",
            Phase.FAILED: "stop",
        }
        want = wants[job.phase]
        form = self._form(job, rank) if want in ("form", "run") else None
        why = job.incident.why[-1] if job.incident is not None and job.incident.why else ""
        return RankOrder(
            rank=rank, incarnation=job.incarnations[rank], generation=job.generation, want=want, form=form, why=why
        )

    def _form(self, job: Job, rank: int) -> Form:
        a = job.agreement
        if a is None:
            return Form(world_size=job.world_size)
        part = a.parts[rank]
        receivers = [r for r, p in a.parts.items() if p is Part.RECEIVE]
        givers = [a.sources[i % len(a.sources)] for i in range(len(receivers))]
        source = ""
        if part is Part.RECEIVE:
            giver = givers[receivers.index(rank)]
            source = self.facts[giver].serve if giver in self.facts else ""
        return Form(
            world_size=job.world_size,
            step=a.step,
            part=part.value,
            source=source,
            serves=sum(1 for g in givers if g == rank),
            between=job.between,
            light=a.light,
        )
