"""Operations that were handed to a device, and are not known to have ended there.

NCCL and HCCL call an operation done when it stands in a stream. For the code that follows in that stream this is as
good as done; for us it is not: an update may be applied only when what it is made of has really arrived. So the gate
before an update waits here, with a question that never blocks, and stops asking when the generation is lost.

An operation that is here when its generation fails has no result: that its kernel then ends proves nothing, because
an abort ends kernels too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from onward.train.backends import Backend

POLL_S = 0.00005  # in the main thread, which has nothing better to do


class Queued(Protocol):
    """An operation on the device."""

    number: int
    launched_at: float
    lane: object  # operations of one lane end in the order of their launch
    inner: Any


class DeviceQueue:
    """What one generation has on the device."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._works: dict[int, Queued] = {}

    def put(self, work: Queued) -> None:
        with self._lock:
            self._works[work.number] = work

    def works(self) -> list[Queued]:
        with self._lock:
            return list(self._works.values())

    def __bool__(self) -> bool:
        return bool(self._works)

    def __contains__(self, work: Queued) -> bool:
        return work.number in self._works

    def _remove(self, works: list[Queued]) -> None:
        with self._lock:
            for work in works:
                self._works.pop(work.number, None)

    def wait(self, backend: Backend, hopeless: Callable[[], bool]) -> None:
        """Until all that is here now, and what else the current stream holds, has ended; or until it is `hopeless`."""
        works = self.works()
        last = {w.lane: w.inner for w in works}
        ended = backend.mark(list(last.values()))
        while not ended():
            if hopeless():
                return
            time.sleep(POLL_S)
        self._remove(works)

    def look(self, backend: Backend) -> bool:
        """Ask the library about each, in a thread aside. True when some have ended; RuntimeError if one failed."""
        ended = [w for w in self.works() if backend.finished(w.inner)]
        self._remove(ended)
        return bool(ended)
