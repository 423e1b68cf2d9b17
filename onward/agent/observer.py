"""What a launcher tells people, as calls. The command line decides how it looks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from onward.core.facts import FaultReport
from onward.core.incident import Incident


@dataclass(frozen=True)
class RankView:
    """One rank as a person would want to see it."""

    rank: int
    pid: int
    incarnation: int
    stage: str
    step: int
    spare_pid: int = 0


@dataclass(frozen=True)
class JobView:
    """The job at one moment."""

    phase: str
    generation: int
    step: int
    total_steps: int
    loss: float | None
    step_s: float
    own_ms: float
    ranks: tuple[RankView, ...]
    incidents: int
    restarts: int
    library: bool
    elapsed_s: float


@dataclass
class Outcome:
    """How a run ended."""

    exit_code: int
    phase: str
    reason: str
    root_cause: FaultReport | None
    incidents: list[Incident] = field(default_factory=list)
    steps: int = 0
    steps_lost: int = 0
    goodput: float = 1.0
    elapsed_s: float = 0.0
    log_dir: str = ""
    root_log: tuple[str, ...] = ()
    host: str = ""


class Observer(Protocol):
    """Called from the launcher's loop; must not block."""

    def line(self, rank: int, stream: str, text: str) -> None: ...

    def note(self, text: str) -> None: ...

    def incident(self, incident: Incident, is_open: bool) -> None: ...

    def status(self, view: JobView) -> None: ...
