"""Published faults, on the manager's side: requests in, and what follows from what stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onward.core import published
from onward.core.conditions import Condition
from onward.core.facts import FaultReport, RankFacts
from onward.core.intake import Surroundings, carry_out
from onward.core.job import Job, Phase, current, node_of
from onward.core.membership import Member, index_of
from onward.core.published import Level, Published, Rules, level_now
from onward.wire.messages import FaultAnswer, FaultRequest


class Bulletin:
    """Holds no faults itself: they are in the job's record. `wall_s` makes a time of day out of the manager's clock."""

    def __init__(self, rules: Rules, wall_s: float) -> None:
        self._rules = rules
        self._wall_s = wall_s

    def time_of_day(self, now: float) -> float:
        return now + self._wall_s

    def asked(
        self, job: Job, request: FaultRequest, here: tuple[Member, ...], now: float
    ) -> tuple[Job, FaultAnswer]:
        """The job after a request, and what is answered."""
        local = job.world_size // max(1, len(job.places))
        around = Surroundings(job.places, here, local, self._rules, self.time_of_day(now))
        answer = carry_out(job.board, request.notice, request.uid, around)
        faults = list(answer.board.faults)
        said = FaultAnswer(uid=request.uid, said=list(answer.said), problems=list(answer.problems), faults=faults)
        return replace(job, board=answer.board), said

    def expired(self, job: Job, now: float) -> tuple[Job, list[str]]:
        board, gone = published.expired(job.board, job.places, self.time_of_day(now))
        if not gone:
            return job, []
        return replace(job, board=board), [f"fault {f.id} is over: {f.level}, {f.where}, {f.words}" for f in gone]

    # ------------------------------------------------------------------------------------------ what follows

    def why_separated(self, job: Job, agent: str, now: float) -> str:
        return published.why_separated(job.board, agent, self._rules, self.time_of_day(now))

    def fit(self, job: Job, here: tuple[Member, ...], bad: Mapping[int, str], now: float) -> tuple[Member, ...]:
        """Who may get a place, the healthy first."""
        at = self.time_of_day(now)
        fit = [m for m in here if not published.why_barred(job.board, m, self._rules, at)]
        ill = {f.agent for f in job.board.faults if level_now(f, self._rules, at) is Level.SUB_HEALTH}
        ill |= {m.id for i, m in enumerate(job.places) if m is not None and i in bad}
        return tuple(sorted(fit, key=lambda m: m.id in ill))

    def sub_health(self, job: Job, now: float) -> dict[int, str]:
        return published.sub_healthy(job.board, job.places, self._rules, self.time_of_day(now))

    def reports(self, job: Job, facts: Mapping[int, RankFacts], now: float) -> dict[int, FaultReport]:
        """What is to be done to ranks, as faults of theirs. Only while they train: else there is no step to redo."""
        if not self._trains(job):
            return {}
        found: dict[int, FaultReport] = {}
        here = current(job, facts)
        for fault in published.due(job.board, job.places, self._rules, self.time_of_day(now)):
            for rank in self._ranks(job, fault):
                f = here.get(rank)
                if f is not None and f.alive and f.fault is None and rank not in found:
                    text = fault.words
                    step = f.progress.step
                    found[rank] = FaultReport(
                        fault.level.value, rank, f.incarnation, step=step, text=text, at=fault.since
                    )
        return found

    def _ranks(self, job: Job, fault: Published) -> list[int]:
        """Those that it is about, and take part; for a redo of the step one is enough."""
        if fault.rank >= 0:
            return [fault.rank] if fault.rank in job.ranks else []
        node = index_of(job.places, fault.agent)
        ranks = [r for r in job.ranks if node_of(job, r) == node]
        return ranks if fault.level is Level.RESTART else ranks[:1]

    def settled(self, job: Job, reports: Mapping[int, FaultReport]) -> Job:
        """Those that have been acted on are done with."""
        handled = set(job.handled)
        acted = {f.at for f in reports.values() if (f.rank, f.incarnation, f.at) in handled}
        done = [f.id for f in job.board.faults if f.level in published.ONCE and f.since in acted]
        return replace(job, board=published.carried_out(job.board, done)) if done else job

    def conditions(self, job: Job, now: float) -> list[Condition]:
        """What stands, for people."""
        at = self.time_of_day(now)
        found = []
        for f in job.board.faults:
            level = level_now(f, self._rules, at)
            if f.done or (level in published.ONCE and self._trains(job)):
                continue  # it is, or is about to be, an incident
            silenced = f" ({f.level}, but silenced)" if level is not f.level else ""
            text = f"fault {f.id}, {f.where}: {f.words}{silenced}"
            found.append(Condition(level.value, f.node, f.rank, text, f.since, f.until, f.code, f.id))
        return found

    def _trains(self, job: Job) -> bool:
        return job.phase is Phase.RUNNING and job.begun
