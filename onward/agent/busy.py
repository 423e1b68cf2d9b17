"""Why a process is silent: one that is late because there is no core for it is not hung, one that is stopped is."""

from __future__ import annotations

from collections import deque

from onward.wire.kernel import is_stopped

WINDOW_S = 5.0
STOPPED_S = 1.0  # of a helper of ours, by a signal, before it is given up


class Lateness:
    """How late our own ticks have come lately. A machine on which the agent is late is one on which ranks are."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()  # (when, how late), the latest last, each worse than the next

    def see(self, late_s: float, now: float) -> float:
        """The worst of the last seconds, this one included."""
        while self._seen and self._seen[-1][1] <= late_s:
            self._seen.pop()
        self._seen.append((now, late_s))
        while self._seen[0][0] < now - WINDOW_S:
            self._seen.popleft()
        return self._seen[0][1]


class RunQueue:
    """How long the main thread of a process has stood in the kernel's queue for a core since it last made progress."""

    def __init__(self, pid: int) -> None:
        self._path = f"/proc/{pid}/schedstat"
        self._progress = -1
        self._then = 0.0

    def since(self, progress: int) -> float:
        """`progress` is whatever changes with each sign of progress. 0 where the kernel does not tell."""
        now = self._waited_s()
        if progress != self._progress:
            self._progress, self._then = progress, now
        return max(0.0, now - self._then)

    def _waited_s(self) -> float:
        try:
            with open(self._path) as f:
                return int(f.read().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return self._then


class Standstill:
    """How long a process has been stopped (SIGSTOP), by the kernel's word. Whoever is stopped cannot say so itself."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._since: float | None = None

    def lasts(self, now: float) -> float:
        """In seconds; 0 while it runs."""
        if not is_stopped(self.pid):
            self._since = None
            return 0.0
        if self._since is None:
            self._since = now
        return now - self._since
