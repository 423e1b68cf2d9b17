"""Waiting for something, and being told to stop in the same moment."""

from __future__ import annotations

import asyncio

import pytest

from onward.kube.informer import happened


@pytest.mark.parametrize("turns", range(4))
def test_a_cancellation_that_comes_with_the_event_is_not_lost(turns: int) -> None:
    async def go() -> None:
        event = asyncio.Event()

        async def worker() -> None:
            while True:
                await happened(event, 60.0)
                event.clear()

        task = asyncio.ensure_future(worker())
        for _ in range(5):  # turns of the loop, in which it comes to its wait
            await asyncio.sleep(0)
        event.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=5.0)
        assert done, "it goes on as if nothing had been said"
        assert task.cancelled()

    asyncio.run(go())


def test_it_happened_or_not() -> None:
    async def go() -> None:
        event = asyncio.Event()
        assert not await happened(event, 0.01)
        event.set()
        assert await happened(event, 60.0)

    asyncio.run(go())
