"""What a launcher tells people, as calls. The command line decides how it looks; `Diary` keeps it all on disk."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from onward.core.conditions import Condition
from onward.core.facts import FaultReport
from onward.core.incident import Incident
from onward.core.words import counted
from onward.wire.view import Fired, JobView, RankView

NO_PROCESS = 71  # the exit code of a process that could not be started
__all__ = ["NO_PROCESS", "Diary", "Ended", "JobView", "Observer", "Outcome", "RankView"]


@dataclass(frozen=True)
class Ended:
    """A process of a rank that is no more, and where to read about it."""

    rank: int
    local_rank: int
    incarnation: int
    pid: int
    exit_code: int  # negative: killed by that signal
    at: float  # wall clock
    out: str  # paths of its logs
    err: str
    killed: bool = False  # by us, so the exit code says nothing about what was wrong
    error: str = ""  # what it wrote to TORCHELASTIC_ERROR_FILE
    traceback: str = ""


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
    loss: float | None = None
    name: str = ""
    script: str = ""
    log_dir: str = ""
    host: str = ""
    root_process: Ended | None = None  # the one that `root_cause` is about, when it is known to have ended
    root_log: tuple[str, ...] = ()  # last lines of its log
    others: tuple[Ended, ...] = ()  # further processes that failed in the last attempt, and were not ended by us
    pids: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by rank, every process it has had
    attempts: int = 1  # how often all ranks were started
    chaos: list[Fired] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)  # what was the matter with nodes and ranks, and when
    refused: int = 0  # connections that were not one of this job's processes
    dropped: int = 0  # messages of the past, or that made no sense


class Observer(Protocol):
    """Called from the launcher's loop; must not block."""

    def line(self, rank: int, stream: str, text: str) -> None:
        """A line that a rank printed."""

    def note(self, text: str) -> None:
        """Something a person should know."""

    def detail(self, text: str) -> None:
        """A decision on the way, for those who look closer."""

    def incident(self, incident: Incident, is_open: bool) -> None:
        """An incident opened, changed or closed."""

    def status(self, view: JobView) -> None:
        """How the job stands; called many times a second."""


class Diary:
    """An observer in front of another: writes every note, detail and incident to a file, and passes them on."""

    def __init__(self, inner: Observer, path: Path) -> None:
        self._inner = inner
        self._path = path
        self._told = ""  # the last line about an incident

    def line(self, rank: int, stream: str, text: str) -> None:
        self._inner.line(rank, stream, text)

    def note(self, text: str) -> None:
        self._write(text)
        self._inner.note(text)

    def detail(self, text: str) -> None:
        self._write(text)
        self._inner.detail(text)

    def incident(self, incident: Incident, is_open: bool) -> None:
        times = ", ".join(f"{stage} {ms:.0f}" for stage, ms in incident.timeline_ms())
        end = "over" if incident.mended else "given up"
        state = "open" if is_open else f"{end} after {incident.total_ms:.0f} ms ({times})"
        last = f"; {incident.why[-1]}" if incident.why and not is_open else ""
        lost = f"; {counted(incident.lost, 'step')} lost" if incident.lost is not None and not is_open else ""
        text = f"incident {incident.number} {state}: {incident.headline()}{last}{lost}"
        if text != self._told:  # one that is open comes again with every decision, and those are written by themselves
            self._told = text
            self._write(text)
        self._inner.incident(incident, is_open)

    def status(self, view: JobView) -> None:
        self._inner.status(view)

    def _write(self, text: str) -> None:
        now = time.time()
        stamp = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))}.{int(now % 1 * 1000):03d}"
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8", errors="replace") as f:
            f.write(f"{stamp} {text}\n")
