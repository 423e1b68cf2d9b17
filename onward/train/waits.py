"""How much of a step this rank has waited for others: what is left is its own doing, and can be compared.

A wait that goes through our own code is measured. DDP waits inside C++, where nobody can look: then the time from the
last launch to the end of the operation counts, as far as the thread did nothing in it. Without the second half, a rank
that computes while its gradients are exchanged would seem to wait.
"""

from __future__ import annotations

import os
import threading
import time


class Waits:
    """Of the current step. All calls but `ended` come from the thread that trains."""

    def __init__(self) -> None:
        self.waited_ns = 0
        self._launched = 0
        self._used = 0  # processor time of the thread, as of the launch
        self._ended = 0

    def begin(self) -> None:
        self.waited_ns = self._launched = self._ended = 0

    def launched(self) -> None:
        """An operation is about to be launched."""
        self.surfaced()
        self._launched, self._used, self._ended = time.monotonic_ns(), time.thread_time_ns(), 0

    def ended(self) -> None:
        """From any thread: nothing is under way any more."""
        self._ended = time.monotonic_ns()

    def surfaced(self) -> None:
        """The thread is here: if it had waited, it does so no more."""
        launched, ended = self._launched, self._ended
        if launched and ended > launched:
            idle = (time.monotonic_ns() - launched) - (time.thread_time_ns() - self._used)
            self.waited_ns += max(0, min(ended - launched, idle))
        self._launched = 0

    def waited(self, since_ns: int, until_ns: int) -> None:
        """A wait that we have seen from its beginning to its end."""
        self.waited_ns += max(0, until_ns - since_ns)
        self._launched = 0


class Processor:
    """What the kernel tells about this thread: how long it has run, and for how long there was no room for it."""

    def __init__(self) -> None:
        try:
            self._fd = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            self.read()
        except (OSError, ValueError, IndexError):
            self._fd = -1  # not every kernel tells

    def read(self) -> tuple[int, int]:
        """(ran, waited in the queue), in nanoseconds."""
        if self._fd < 0:
            return 0, 0
        ran, queued = os.pread(self._fd, 64, 0).split()[:2]
        return int(ran), int(queued)
