"""What is kept of processes that are no more: enough to say which failed first, how, and where to read about it."""

from __future__ import annotations

import time
from pathlib import Path

from onward.agent.logic import Process
from onward.agent.logs import error_file
from onward.agent.observer import Ended
from onward.core.facts import FaultReport


class Obituaries:
    """Every process that ranks have had, and how each ended."""

    def __init__(self) -> None:
        self.pids: dict[int, list[int]] = {}  # rank -> its processes, first to last
        self._ended: dict[tuple[int, int], Ended] = {}  # by rank and incarnation
        self._failed: dict[int, list[Ended]] = {}  # attempt -> those that failed by themselves

    def alive(self, rank: int, pid: int) -> None:
        """`rank` is this process now."""
        history = self.pids.setdefault(rank, [])
        if pid and (not history or history[-1] != pid):
            history.append(pid)

    def dead(self, p: Process, local_rank: int, code: int, logs: tuple[Path, Path], error_json: Path) -> None:
        error, trace = error_file(error_json)
        ended = Ended(
            rank=p.rank,
            local_rank=local_rank,
            incarnation=p.incarnation,
            pid=p.pid,
            exit_code=code,
            at=time.time(),
            out=str(logs[0]),
            err=str(logs[1]),
            killed=p.killed,
            error=error,
            traceback=trace,
        )
        self._ended[(p.rank, p.incarnation)] = ended
        if code != 0 and not p.killed:
            self._failed.setdefault(p.attempt, []).append(ended)

    def of(self, fault: FaultReport | None) -> Ended | None:
        """The process that `fault` is about, if it has ended."""
        return self._ended.get((fault.rank, fault.incarnation)) if fault is not None else None

    def others(self, ended: Ended | None) -> tuple[Ended, ...]:
        """How other ranks failed in the last attempt that had failures, each the first time."""
        first: dict[int, Ended] = {}
        for e in self._failed.get(max(self._failed, default=0), []):
            first.setdefault(e.rank, e)
        return tuple(e for e in first.values() if ended is None or e.rank != ended.rank)
