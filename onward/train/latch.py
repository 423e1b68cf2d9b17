"""An event that happens once. `threading.Event` is four objects and a queue of waiters; a collective needs one lock."""

from __future__ import annotations

from _thread import allocate_lock


class Latch:
    """Set once, by whoever comes first; whoever waits is released."""

    __slots__ = ("_done", "_held")

    def __init__(self) -> None:
        self._done = False
        self._held = allocate_lock()
        self._held.acquire()

    def is_set(self) -> bool:
        return self._done

    def set(self) -> None:
        """The caller sees to it that this is called once."""
        self._done = True
        self._held.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """True when it is set; False on timeout."""
        if not self._done and self._held.acquire(timeout=-1 if timeout_s is None else timeout_s):
            self._held.release()  # for whoever else waits
        return self._done
