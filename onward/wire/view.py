"""A job as people see it: what a launcher shows on its own screen and tells `onward status`."""

from __future__ import annotations

from dataclasses import dataclass

from onward.core.conditions import Condition


@dataclass(frozen=True)
class RankView:
    """One rank as a person would want to see it."""

    rank: int
    pid: int
    incarnation: int
    stage: str
    step: int  # steps it has committed; -1 before its first
    spare_pid: int = 0  # a parked replacement, ready to take over
    compute_s: float = 0.0  # of its last step, what it did itself and did not wait for


@dataclass(frozen=True)
class JobView:
    """The job at one moment."""

    phase: str
    generation: int
    step: int  # steps that every rank has committed
    total_steps: int  # 0: the script has not said
    loss: float | None
    step_s: float  # the last step of the slowest rank
    own_ms: float  # onward's own time in it
    ranks: tuple[RankView, ...]
    incidents: int
    restarts: int
    library: bool  # the script uses the onward library
    elapsed_s: float
    name: str = ""
    log_dir: str = ""
    steps_lost: int = 0
    goodput: float = 1.0
    conditions: tuple[Condition, ...] = ()  # what is the matter with nodes and ranks, now


@dataclass(frozen=True)
class Fired:
    """An injected fault that has begun, and what showed that it really happened."""

    id: int
    kind: str
    rank: int  # -1: a process of onward's own
    step: int
    pid: int
    at: float = 0.0  # the machine's monotonic clock, as in incidents
    proof: str = ""  # in words; empty: announced, not proved yet
