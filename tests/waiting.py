"""How tests wait: for something to become true, with a deadline, never for a time and then in hope."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")
LIMIT_S = 120.0
POLL_S = 0.02


def until(test: Callable[[], T], what: str, limit_s: float = LIMIT_S) -> T:
    """The first truthy answer of `test`; fails with `what` when there is none in time."""
    looks = _looks(test, what, limit_s)
    while not (answer := next(looks)):
        time.sleep(POLL_S)
    return answer


async def until_async(test: Callable[[], T], what: str, limit_s: float = LIMIT_S) -> T:
    """The same, where others in this event loop must get on meanwhile."""
    looks = _looks(test, what, limit_s)
    while not (answer := next(looks)):
        await asyncio.sleep(POLL_S)
    return answer


def _looks(test: Callable[[], T], what: str, limit_s: float) -> Iterator[T]:
    """One answer of `test` after the other, up to the first truthy one, or the deadline."""
    deadline = time.monotonic() + limit_s
    while True:
        answer = test()
        assert answer or time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
        yield answer
