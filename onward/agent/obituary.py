"""What is kept of processes that are no more: enough to say which failed first, how, and where to read about it."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from onward.agent.facts import Process
from onward.agent.logs import UNREADABLE, error_file, last_error, tail
from onward.agent.observer import Ended
from onward.core.facts import FaultReport
from onward.core.faults import LOGIC
from onward.devices import classify_error

TOGETHER_S = 10.0  # an attempt may last for days, with many deaths that were mended


class Obituaries:
    """Every process that ranks have had, and how each ended."""

    def __init__(self) -> None:
        self.pids: dict[int, list[int]] = {}  # rank -> its processes, first to last
        self._ended: dict[tuple[int, int], Ended] = {}  # by rank and incarnation
        self._failed: dict[int, list[Ended]] = {}  # attempt -> those that failed by themselves
        self._attempts: dict[int, list[Ended]] = {}  # attempt -> all that ended in it, in that order

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
        self._attempts.setdefault(p.attempt, []).append(ended)
        if code != 0 and not p.killed:
            self._failed.setdefault(p.attempt, []).append(ended)

    def of(self, fault: FaultReport | None) -> Ended | None:
        """The process that `fault` is about, if it has ended."""
        return self._ended.get((fault.rank, fault.incarnation)) if fault is not None else None

    def cause(self, fault: FaultReport | None) -> FaultReport | None:
        """`fault`, or what it is the echo of.

        Who loses a peer may be gone before that peer has finished dying of its own error; by then all are told to end.
        """
        ended = self.of(fault)
        if fault is None or ended is None or _own_error(ended) is not False:
            return fault
        near = [e for e in self._attempts[self._attempt_of(ended)] if abs(e.at - ended.at) < TOGETHER_S]
        real = next((e for e in near if _own_error(e)), None)
        if real is None:
            return fault
        text = f"exit code {real.exit_code}"
        return FaultReport("exit", real.rank, real.incarnation, step=fault.step, text=text, at=real.at)

    def _attempt_of(self, ended: Ended | None) -> int:
        last = max(self._failed, default=0)
        return next((n for n, some in self._attempts.items() if ended in some), last)

    def blame_the_script(self, attempt: int) -> bool:
        """Some process ended in that attempt with an error that nothing but another script cures."""
        errors = [e.error or last_error(tail(Path(e.err), 200)) for e in self._failed.get(attempt, [])]
        return any(error.partition(":")[0] in (*UNREADABLE, *LOGIC) for error in errors)

    def others(self, ended: Ended | None) -> tuple[Ended, ...]:
        """How other ranks failed in the attempt of `ended`, else in the last that had failures; each the first time."""
        first: dict[int, Ended] = {}
        for e in self._failed.get(self._attempt_of(ended), []):
            first.setdefault(e.rank, e)
        return tuple(e for e in first.values() if ended is None or e.rank != ended.rank)


def _own_error(e: Ended) -> bool | None:
    """Whether a process died of an error of its own, or (False) of losing a peer; None when it has not said."""
    if e.exit_code < 0 and not e.killed:
        return e.exit_code != -signal.SIGABRT or None
    error = e.error or last_error(tail(Path(e.err), 200))
    if not error:
        return None
    known = classify_error("", error)
    return known is None or known.kind != "communication"
