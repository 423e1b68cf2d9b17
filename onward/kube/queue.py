"""A work queue of keys: added many times, worked on once; never twice at the same time; failing keys wait longer.

A key that is added while it is worked on comes again afterwards, so no change is missed. This is what makes a
controller level-triggered: it hears *that* something changed, and looks for itself at what.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from onward.errors import OnwardError
from onward.kube.client import backoff_s
from onward.log import get_logger

log: logging.Logger = get_logger("kube.queue")


class WorkQueue:
    """Keys waiting to be worked on, in the order in which they came."""

    def __init__(self, base_s: float = 0.05, cap_s: float = 30.0) -> None:
        self._base_s, self._cap_s = base_s, cap_s
        self._waiting: OrderedDict[str, None] = OrderedDict()
        self._working: set[str] = set()
        self._again: set[str] = set()
        self._failures: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: str) -> None:
        if key in self._working:
            self._again.add(key)
            return
        self._waiting[key] = None
        self._changed.set()

    def add_after(self, key: str, delay_s: float) -> None:
        """The earliest of several delays counts."""
        loop = asyncio.get_running_loop()
        at = loop.time() + delay_s
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= at:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(at, self._due, key)

    def _due(self, key: str) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def retry(self, key: str, at_least_s: float = 0.0) -> None:
        """Again, later and later each time it fails."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self.add_after(key, max(at_least_s, backoff_s(failures, self._base_s, self._cap_s)))

    def forget(self, key: str) -> None:
        """It went well: its next failure is its first."""
        self._failures.pop(key, None)

    def failures(self, key: str) -> int:
        return self._failures.get(key, 0)

    async def get(self) -> str:
        while not self._waiting:
            self._changed.clear()
            await self._changed.wait()
        key, _ = self._waiting.popitem(last=False)
        self._working.add(key)
        return key

    def done(self, key: str) -> None:
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()


async def work(queue: WorkQueue, handle: Callable[[str], Awaitable[None]], workers: int = 1) -> None:
    """Call `handle` for each key until cancelled. What it raises is logged, and the key comes again later."""

    async def one() -> None:
        while True:
            key = await queue.get()
            try:
                await handle(key)
                queue.forget(key)
            except OnwardError as e:
                log.info("%s: %s; again later", key, e)
                queue.retry(key, getattr(e, "retry_after_s", None) or 0.0)
            except Exception:  # one key that cannot be handled must not keep the others waiting
                log.exception("%s: not expected; again later", key)
                queue.retry(key)
            finally:
                queue.done(key)

    try:
        await asyncio.gather(*(one() for _ in range(workers)))
    finally:
        queue.close()
