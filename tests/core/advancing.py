"""A job under `advance`: facts of its ranks as they would come, and a clock that is turned by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onward.core.facts import FaultReport, Progress, RankFacts, Scope, Stage
from onward.core.incident import Incident
from onward.core.job import Limits, Phase, new_job
from onward.core.policy import Policy, parse_policies
from onward.core.recovery import advance

ALL = parse_policies("retry,recover-in-place,dump")


class Driven:
    """A job under `advance`, with the facts of its ranks at hand and a clock that is turned by hand."""

    def __init__(self, world: int = 3, policies: tuple[Policy, ...] = ALL, **limits: Any) -> None:
        self.job = new_job(world, policies, Limits(**limits))
        self.facts: dict[int, RankFacts] = {}
        self.now = 1000.0
        self.why: list[str] = []
        self.closed: list[Incident] = []

    def set(self, rank: int, **changes: Any) -> None:
        fresh = RankFacts(rank=rank, node=0, incarnation=self.job.incarnations[rank], library=True)
        old = self.facts.get(rank, fresh)
        self.facts[rank] = replace(old if old.incarnation == fresh.incarnation else fresh, **changes)

    def each(self, *ranks: int, **changes: Any) -> Driven:
        for rank in ranks or range(self.job.world_size):
            self.set(rank, **changes)
        return self

    def go(self, after: float = 0.0) -> Driven:
        """Let time pass, follow the facts, and check what must hold after every decision."""
        self.now += after
        before = self.job
        decision = advance(before, self.facts, self.now)
        again = advance(decision.job, self.facts, self.now)
        assert again.job == decision.job, "asked twice, it must answer the same"
        assert not again.closed
        assert decision.job.generation >= before.generation
        assert all(b >= a for a, b in zip(before.incarnations, decision.job.incarnations, strict=True))
        self.job = decision.job
        self.why += decision.why
        self.closed += decision.closed
        return self

    @property
    def story(self) -> Incident:
        """The first incident: closed, or still open because not everybody trains again."""
        first = self.closed[0] if self.closed else self.job.incident
        assert first is not None
        return first

    def running(self, step: int = 20) -> Driven:
        """Past the first steps of the first generation."""
        self.each(stage=Stage.SETUP).go()
        self.each(stage=Stage.FORMED, generation=self.job.generation).go()
        assert self.job.phase is Phase.RUNNING
        self.each(stage=Stage.READY, generation=self.job.generation, loadable=()).go()
        assert self.job.begun
        return self.commit(step)

    def commit(self, step: int) -> Driven:
        return self.each(
            stage=Stage.TRAINING,
            generation=self.job.generation,
            step=step,
            clean=True,
            undo=False,
            scope=Scope.STEP,
            resumed=True,
            fault=None,
            local_steps=(step - 1, step),
            progress=Progress(step=step),
        ).go()

    def die(self, rank: int, code: int = -9) -> Driven:
        self.set(rank, stage=Stage.EXITED, exit_code=code)
        return self.go()

    def park(self, rank: int, step: int) -> Driven:
        """The replacement that was asked for is there, and knows the local state of `step`."""
        self.set(rank, stage=Stage.PARKED, local_steps=(step - 1, step), step=-1)
        return self.go()

    def pause(self, *ranks: int) -> Driven:
        return self.each(*ranks, stage=Stage.PAUSED, generation=self.job.generation, resumed=False).go()

    def form(self) -> Driven:
        return self.each(stage=Stage.FORMED, generation=self.job.generation, resumed=False, fault=None).go()


def error(rank: int, text: str = "ValueError", step: int = 20, retryable: str = "", at: float = 50.0) -> FaultReport:
    return FaultReport("exception", rank, 1, step=step, text=text, retryable=retryable, at=at, traceback="Traceback")
