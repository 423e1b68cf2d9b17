"""The scheduler against a real API server: nodes as objects, pods that nobody runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from faultyapi import ApiProcess, FaultyApi

from onward.kube.access import Access
from onward.kube.client import Client
from onward.kube.objects import EVENTS, NODES, PODS, name_of
from onward.scheduler.loop import Scheduler


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    process = ApiProcess(tmp_path_factory.mktemp("scheduler-api"))
    yield process.access
    process.stop()


async def add_node(client: Client, name: str, cpu: str = "4") -> None:
    await client.create(NODES, {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
    status = {
        "allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"},
        "capacity": {"cpu": cpu, "memory": "8Gi", "pods": "10"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    await client.patch(NODES, name, {"status": status}, sub="status")


async def add_pod(client: Client, name: str, cpu: str = "1", **spec: Any) -> None:
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    pod = {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}
    await client.create(PODS, pod, "default")


async def placed(client: Client, names: list[str], timeout_s: float = 20.0) -> dict[str, str]:
    deadline = time.monotonic() + timeout_s
    while True:
        pods = {name_of(p): p["spec"].get("nodeName", "") for p in (await client.list(PODS, "default"))["items"]}
        if all(pods.get(name) for name in names):
            return pods
        assert time.monotonic() < deadline, pods
        await asyncio.sleep(0.02)


async def event(client: Client, name: str, good: Callable[[str], bool]) -> str:
    deadline = time.monotonic() + 20
    while True:
        found = (await client.list(EVENTS, "default", fieldSelector=f"involvedObject.name={name}"))["items"]
        for each in found:
            if good(each["message"]):
                return str(each["message"])
        assert time.monotonic() < deadline, [e["message"] for e in found]
        await asyncio.sleep(0.02)


def test_pods_get_nodes_and_no_place_is_given_twice(real: Access) -> None:
    async def go() -> None:
        async with FaultyApi(real) as faulty, Client(faulty.access) as client, Client(real) as calm:
            scheduler = Scheduler(client, ["default-scheduler", "volcano"])
            task = asyncio.ensure_future(scheduler.run())
            await add_node(calm, "n1")
            await add_node(calm, "n2")
            refused: list[str] = []

            def rule(request: Any) -> str:
                if request.path.endswith("/binding") and len(refused) < 4:
                    refused.append(["409", "500", "lost", "drop"][len(refused)])
                    return refused[-1]
                return ""

            faulty.rule = rule
            names = [f"p{i}" for i in range(8)]
            await asyncio.gather(*(add_pod(calm, name) for name in names))
            await add_pod(calm, "foreign", schedulerName="somebody-else")
            pods = await placed(calm, names)
            nodes = [pods[name] for name in names]
            assert sorted(nodes) == ["n1"] * 4 + ["n2"] * 4, "8 cpus are asked for, 8 are there"
            assert pods["foreign"] == ""
            assert faulty.fired == ["409", "500", "lost", "drop"]
            await add_pod(calm, "more", schedulerName="volcano")
            text = await event(calm, "more", lambda m: m.startswith("0/2"))
            assert text == "0/2 nodes are available: 2 Insufficient cpu."
            await calm.delete(PODS, "p0", "default", {"gracePeriodSeconds": 0})
            found = await placed(calm, ["more"])
            assert found["more"] == pods["p0"], "what becomes free is given away at once"
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(go(), 60))
