"""What becomes of a job, told by the real operator and the real API server; nodes and pods are objects only."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from world import Fate, World, operated

from onward.kube.access import Access
from onward.kube.client import Client
from onward.kube.objects import Obj, name_of, uid_of
from onward.operator.eyes import JOBS

LIMIT_S = 120.0


def tell(
    real: Access,
    story: Callable[[World], Awaitable[None]],
    fate: Fate | None = None,
    gang: bool | None = True,
    **given: Any,
) -> None:
    async def go() -> None:
        async with Client(real) as client:
            world = World(client, f"s-{uuid.uuid4().hex[:8]}")
            await world.build()
            async with operated(real, world, fate or Fate(), gang, **given):
                await story(world)

    asyncio.run(asyncio.wait_for(go(), LIMIT_S))


async def submit(world: World, job: Obj) -> None:
    await world.client.create(JOBS, job, world.namespace)


async def runs(world: World, name: str = "job", restarts: int = 0) -> None:
    def good() -> bool:
        return world.state(name) == "Running" and world.restarts(name) == restarts

    await world.until(good, f"{name} runs, after {restarts} restarts")


async def fails(world: World, message: str, reason: str = "JobFailed", name: str = "job") -> None:
    await world.until(lambda: world.state(name) == "Failed", f"{name} fails")
    condition = world.condition(name)
    assert (condition["reason"], condition["status"]) == (reason, "True")
    assert condition["message"] == message.replace("NS", world.namespace)


async def said(world: World, text: str) -> None:
    await world.told("job", lambda event: event.startswith(text), text)


def uids(world: World) -> dict[str, str]:
    return {name_of(p): uid_of(p) for p in world.own_pods()}


def waves(world: World) -> dict[str, str]:
    return {name_of(p): p["metadata"]["labels"]["version"] for p in world.own_pods()}
