"""A small event loop: files that become readable, children that end, and times that come. One thread, so that
forking is safe.
"""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import signal
import time
from collections.abc import Callable


class Timer:
    """Can be cancelled."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Loop:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._calls: dict[tuple[int, int], Callable[[], None]] = {}  # by file and what it must be ready for
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()
        self._children: dict[int, Callable[[int], None]] = {}
        self._ended: dict[int, int] = {}  # children that ended before anybody asked
        self.running = True
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.on_readable(read, lambda: self._drain(read))

    def on_readable(self, fd: int, call: Callable[[], None]) -> None:
        self._calls[fd, selectors.EVENT_READ] = call
        self._select(fd)

    def on_writable(self, fd: int, call: Callable[[], None]) -> None:
        self._calls[fd, selectors.EVENT_WRITE] = call
        self._select(fd)

    def forget(self, fd: int, reading: bool = True, writing: bool = True) -> None:
        for event, meant in ((selectors.EVENT_READ, reading), (selectors.EVENT_WRITE, writing)):
            if meant:
                self._calls.pop((fd, event), None)
        self._select(fd)

    def _select(self, fd: int) -> None:
        events = sum(event for event in (selectors.EVENT_READ, selectors.EVENT_WRITE) if (fd, event) in self._calls)
        known = self._selector.get_map().get(fd)
        if events and known is None:
            self._selector.register(fd, events)
        elif events and known is not None:
            self._selector.modify(fd, events)
        elif known is not None:
            self._selector.unregister(fd)

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        timer = Timer(call)
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._count), timer))
        return timer

    def on_exit(self, pid: int, call: Callable[[int], None]) -> None:
        """`call(status)` when the child has ended; the status is that of waitpid."""
        if pid in self._ended:
            status = self._ended.pop(pid)
            self.after(0, lambda: call(status))
        else:
            self._children[pid] = call

    def _drain(self, fd: int) -> None:
        try:
            while os.read(fd, 4096):
                pass
        except BlockingIOError:
            pass
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            call = self._children.pop(pid, None)
            if call is not None:
                call(status)
            else:
                self._ended[pid] = status  # an orphan that we adopted, or one we are about to ask for
                while len(self._ended) > 256:
                    self._ended.pop(next(iter(self._ended)))

    def run(self) -> None:
        while self.running:
            wait = None
            while self._timers and self._timers[0][2].call is None:
                heapq.heappop(self._timers)
            if self._timers:
                wait = max(0.0, self._timers[0][0] - time.monotonic())
            for key, ready in self._selector.select(wait):
                for event in (selectors.EVENT_READ, selectors.EVENT_WRITE):
                    call = self._calls.get((key.fd, event)) if ready & event else None
                    if call is not None:  # nobody before it has had it forgotten
                        call()
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                timer = heapq.heappop(self._timers)[2]
                if timer.call is not None:
                    call, timer.call = timer.call, None
                    call()
