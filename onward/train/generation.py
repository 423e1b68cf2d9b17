"""One membership of the process group, and what belongs to it alone: failure mark, pending operations, connections."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from onward.log import get_logger
from onward.train.backends import Backend
from onward.train.device_queue import DeviceQueue
from onward.train.sockets import Connections

if TYPE_CHECKING:
    from onward.train.work import GroupWork

log = get_logger("onward.train")
ABORT_GRACE_S = 0.02  # gloo's time to end an operation whose sockets were shut, before we end it ourselves


class Generation:
    """One membership of the process group, as seen by one rank."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.failed = ""  # why; set before anything that was waiting is released
        self.broken = False  # an operation ended without its result
        self._lock = threading.Lock()
        self._pending: dict[int, GroupWork] = {}  # somebody may wait for these
        self._inside: set[int] = set()  # and these gloo has not ended, whatever we told whoever waited
        self._connections: list[Connections] = []
        self._aborters: list[tuple[Backend, Any]] = []
        self._aborting: list[threading.Thread] = []
        self.queue = DeviceQueue()
        self._count = 0
        self._over = False  # aborted: nothing that begins now will ever end by itself

    def fail(self, why: str) -> None:
        with self._lock:
            if not self.failed:
                self.failed = why
        if self.queue:
            self.broken = True

    def add(self, work: GroupWork) -> bool:
        """False when the generation was aborted while the operation was being launched."""
        with self._lock:
            self._count += 1
            work.number = self._count
            self._inside.add(work.number)
            if not self._over:
                self._pending[work.number] = work
            return not self._over

    def enqueue(self, work: GroupWork) -> None:
        """`work` is on the device: it counts as answered, but not as ended."""
        with self._lock:
            self._count += 1
            work.number = self._count
        self.queue.put(work)
        if self.failed:
            self.broken = True

    def ended(self, work: GroupWork) -> None:
        with self._lock:
            self._inside.discard(work.number)

    def remove(self, work: GroupWork) -> float:
        """Returns the launch time of the oldest operation still pending, 0 when there is none."""
        with self._lock:
            self._pending.pop(work.number, None)
            if not self.queue:
                return next((w.launched_at for w in self._pending.values()), 0.0)  # they stand in the order of launch
        return self.oldest()

    def under_way(self) -> list[GroupWork]:
        """Operations that somebody may wait for, in the order of their launch."""
        with self._lock:
            return list(self._pending.values()) if self._pending else []

    def oldest(self) -> float:
        with self._lock:
            launched = [w.launched_at for w in self._pending.values()]
        return min((*launched, *(w.launched_at for w in self.queue.works())), default=0.0)

    @property
    def stuck(self) -> bool:
        """An operation, or an abort, is still inside a library: destroying its group now would block."""
        return bool(self._inside) or self.aborting

    @property
    def aborting(self) -> bool:
        return any(t.is_alive() for t in self._aborting)

    def guard(self, connections: Connections | None, backend: Backend, inner: Any) -> None:
        with self._lock:
            if connections is not None:
                self._connections.append(connections)
            self._aborters.append((backend, inner))

    def drop_connections(self) -> int:
        with self._lock:
            connections = list(self._connections)
        return sum(c.shut() for c in connections)

    def abort(self, why: str) -> None:
        """Wake everybody who waits in this generation. Safe from any thread, any number of times."""
        self.fail(why)
        with self._lock:
            connections = list(self._connections)
            aborters, self._aborters = self._aborters, []
        for c in connections:
            c.shut()
        for backend, inner in aborters:
            if backend.late:
                # Aside: it can take a second, and this may be the thread that tells the agent that we are alive.
                thread = threading.Thread(target=_abort, args=(backend, inner), name="onward-abort", daemon=True)
                self._aborting.append(thread)
                thread.start()
            else:
                backend.abort(inner)
        deadline = time.monotonic() + ABORT_GRACE_S
        while self._pending and time.monotonic() < deadline:
            time.sleep(0.001)
        with self._lock:
            self._over = True
            left = list(self._pending.values())
        for work in left:
            work.finish(failed=True)


def _abort(backend: Backend, inner: Any) -> None:
    try:
        backend.abort(inner)
    except RuntimeError as e:
        log.info("aborting %s: %s", backend.name, e)
