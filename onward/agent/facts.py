"""What an agent knows of its processes, and what the manager is told of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from onward.agent.saving import Saving
from onward.core.facts import FaultReport, Progress, RankFacts, Scope, Stage
from onward.wire.messages import RankOrder, Report


@dataclass
class Process:
    """One process of a rank, or of a spare for it."""

    number: int
    rank: int
    incarnation: int
    spare: bool  # waits for its rank's place
    stand_in: bool  # was started to take over a place, so it runs alone up to its first step
    attempt: int
    pid: int = 0
    attached: bool = False
    report: Report | None = None
    exit_code: int | None = None
    fault: FaultReport | None = None
    progress: Progress = field(default_factory=Progress)
    sent: RankOrder | None = None
    killed: bool = False
    died_at: float = 0.0  # on the agent's clock

    @property
    def alive(self) -> bool:
        return self.exit_code is None

    @property
    def parked(self) -> bool:
        return self.alive and self.report is not None and self.report.stage == Stage.PARKED.value


def rank_facts(
    p: Process,
    node: int,
    saving: Saving,
    local: tuple[tuple[int, ...], tuple[int, ...]],
    memory: tuple[tuple[int, ...], tuple[int, ...]],
    begun: int,
    now: float,
) -> RankFacts:
    """Of a process that is its rank. Three are of what the node holds of the rank outside its process."""
    r = p.report
    whole, kept = memory
    stage = Stage(r.stage) if r is not None else Stage.STARTING
    if not p.alive:
        stage = Stage.EXITED
    return RankFacts(
        rank=p.rank,
        node=node,
        incarnation=p.incarnation,
        pid=p.pid,
        stage=stage,
        generation=r.generation if r else 0,
        library=p.attached,
        step=r.step if r else -1,
        clean=r.clean if r else False,
        undo=r.undo if r else False,
        scope=Scope(r.scope) if r else Scope.SETUP,
        local_steps=local[0],
        early=local[1],
        begun=begun,
        resumed=r.resumed if r else False,
        serve=r.serve if r else "",
        between=r.between if r else 0,
        loadable=tuple(r.loadable) if r else (),
        partly=tuple(r.partly) if r else (),
        memory=whole,
        kept=kept,
        disk=saving.published,
        save_error=saving.error,
        light=r.light if r else 0,
        elastic=r.elastic if r else False,
        feed=r.feed if r else "",
        follows=r.follows if r else "",
        joined=r.joined if r else "",
        broke=r.broke if r else False,
        withheld=r.withheld if r else "",
        exit_code=p.exit_code,
        dead_s=max(0.0, now - p.died_at) if not p.alive else 0.0,
        fault=p.fault,
        progress=p.progress,
    )
