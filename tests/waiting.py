"""How tests wait: for something to become true, with a deadline, never for a time and then in hope."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
What = str | Callable[[], str]  # what is waited for; a function is asked when it did not come: how things are then
LIMIT_S = 120.0
POLL_S = 0.02


def within(limit_s: float, test: Callable[[], T]) -> T:
    """The first truthy answer of `test`; the last one when there is none in time."""
    deadline = time.monotonic() + limit_s
    while not (answer := test()) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return answer


def until(test: Callable[[], T], what: What, limit_s: float = LIMIT_S) -> T:
    """The first truthy answer of `test`; fails with `what` when there is none in time."""
    answer = within(limit_s, test)
    assert answer, _late(what, limit_s)
    return answer


async def until_async(test: Callable[[], T | Awaitable[T]], what: What, limit_s: float = LIMIT_S) -> T:
    """The same, where others in this event loop must get on meanwhile. `test` may be one of them."""
    deadline = time.monotonic() + limit_s
    while True:
        answer = test()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < deadline, _late(what, limit_s)
        await asyncio.sleep(POLL_S)


def _late(what: What, limit_s: float) -> str:
    return f"not within {limit_s:g} s: {what if isinstance(what, str) else what()}"
