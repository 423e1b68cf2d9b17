"""Nodes, pods and PodGroups on a real API server: objects that nobody runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from faultyapi import FaultyApi
from waiting import until_async

from onward.api.crds import crds
from onward.kube.access import Access
from onward.kube.client import Client
from onward.kube.definitions import install
from onward.kube.objects import EVENTS, NODES, PODS, Obj, name_of
from onward.scheduler.gangs import POD_GROUPS
from onward.scheduler.loop import Scheduler

T = TypeVar("T")
NAMES = ("default-scheduler", "volcano")


async def add_node(client: Client, name: str, cpu: str = "4", **spec: Any) -> None:
    body = {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": spec}
    await client.create(NODES, body)
    have = {"cpu": cpu, "memory": "8Gi", "pods": "10"}
    status = {"allocatable": have, "capacity": have, "conditions": [{"type": "Ready", "status": "True"}]}
    await client.patch(NODES, name, {"status": status}, sub="status")


async def add_pod(
    client: Client, name: str, cpu: str = "1", annotations: dict[str, str] | None = None, **spec: Any
) -> Obj:
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    metadata = {"name": name, "annotations": annotations or {}}
    return await client.create(PODS, {"metadata": metadata, "spec": {"containers": [container], **spec}}, "default")


async def add_group(client: Client, name: str, minimum: int, **spec: Any) -> Obj:
    body = {
        "apiVersion": POD_GROUPS.api_version,
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": minimum, **spec},
    }
    return await client.create(POD_GROUPS, body, "default")


async def add_member(client: Client, group: str, number: int, cpu: str = "1", **notes: str) -> Obj:
    said = {"scheduling.k8s.io/group-name": group, "volcano.sh/task-spec": "worker", **notes}
    return await add_pod(client, f"{group}-{number}", cpu, said, schedulerName="volcano")


async def add_gang(client: Client, name: str, count: int, minimum: int | None = None, **spec: Any) -> None:
    await add_group(client, name, count if minimum is None else minimum, **spec)
    await asyncio.gather(*(add_member(client, name, i) for i in range(count)))


async def nodes_of(client: Client, prefix: str = "") -> dict[str, str]:
    pods = (await client.list(PODS, "default"))["items"]
    return {name_of(p): p["spec"].get("nodeName", "") for p in pods if name_of(p).startswith(prefix)}


async def until(ask: Callable[[], Awaitable[T]], good: Callable[[T], bool], timeout_s: float = 20.0) -> T:
    """Ask until the answer is good."""
    found: list[T] = []

    async def look() -> bool:
        found[:] = [await ask()]
        return good(found[0])

    await until_async(look, lambda: f"a good answer; the last was {found[0]}", timeout_s)
    return found[0]


async def placed(client: Client, names: list[str]) -> dict[str, str]:
    return await until(lambda: nodes_of(client), lambda pods: all(pods.get(name) for name in names))


async def phase(client: Client, name: str, *wanted: str) -> Obj:
    async def ask() -> Obj:
        found: Obj = (await client.get(POD_GROUPS, name, "default")).get("status") or {}
        return found

    return await until(ask, lambda status: status.get("phase") in wanted)


async def events(client: Client, name: str) -> list[Obj]:
    found: list[Obj] = (await client.list(EVENTS, "default", fieldSelector=f"involvedObject.name={name}"))["items"]
    return found


async def event(client: Client, name: str, good: Callable[[str], bool]) -> str:
    async def ask() -> list[str]:
        return [f"{each['reason']}: {each['message']}" for each in await events(client, name)]

    return next(filter(good, await until(ask, lambda texts: any(map(good, texts)))))


async def sweep(client: Client) -> None:
    """For the next test."""
    for pod in (await client.list(PODS, "default"))["items"]:
        await client.delete(PODS, name_of(pod), "default", {"gracePeriodSeconds": 0})
    for resource, namespace in ((POD_GROUPS, "default"), (EVENTS, "default"), (NODES, None)):
        for each in (await client.list(resource, namespace))["items"]:
            await client.delete(resource, name_of(each), namespace)


@asynccontextmanager
async def scheduling(client: Client, **more: Any):  # type: ignore[no-untyped-def]
    """A scheduler that runs meanwhile. What it raises is raised here."""
    task = asyncio.ensure_future(Scheduler(client, NAMES, **more).run())
    try:
        yield task
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def go(real: Access, work: Callable[[FaultyApi, Client, Client], Awaitable[None]], timeout_s: float = 120) -> None:
    """With a client that fails on purpose, for the scheduler, and one that does not, for the test."""

    async def run() -> None:
        async with FaultyApi(real) as faulty, Client(faulty.access) as client, Client(real) as calm:
            await install(calm, crds())
            await sweep(calm)
            await work(faulty, client, calm)

    asyncio.run(asyncio.wait_for(run(), timeout_s))
