"""How much of a step this rank has waited for others: what is left is its own doing, and can be compared.

A wait that goes through our own code is measured. DDP waits inside C++, where nobody can look: then the time from the
last launch to the end of the operation counts, as far as the thread did nothing in it. Without the second half, a rank
that computes while its gradients are exchanged would seem to wait.
"""

from __future__ import annotations

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

    def waited(self, since_ns: int) -> None:
        """A wait that began at `since_ns` is over now."""
        self.waited_ns += time.monotonic_ns() - since_ns
        self._launched = 0
