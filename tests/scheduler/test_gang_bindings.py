"""Bindings that fail half-way: a gang is completed, or gives back what it holds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from aiohttp import web
from faultyapi import FaultyApi
from objects import (
    NAMES,
    add_gang,
    add_group,
    add_member,
    add_node,
    add_pod,
    event,
    go,
    nodes_of,
    phase,
    placed,
    scheduling,
    sweep,
    until,
)

from onward.kube.access import Access
from onward.kube.client import Client
from onward.kube.informer import Informer
from onward.kube.objects import PODS, Obj, name_of
from onward.scheduler.gangs import POD_GROUPS
from onward.scheduler.loop import Scheduler

T = TypeVar("T")
GANG = [f"one-{i}" for i in range(4)]


class Killer:
    """The scheduler dies in the moment after its n-th write that counts: nothing it says later is heard."""

    def __init__(self, faulty: FaultyApi, at: int, counts: tuple[str, ...]) -> None:
        self._at, self._counts = at, counts
        self.dead = asyncio.Event()
        self.writes = 0
        faulty.rule = self._rule

    def _rule(self, request: Any) -> str:
        if self.dead.is_set():
            return "drop"
        if request.method != "GET" and any(part in request.path for part in self._counts):
            self.writes += 1
            if self.writes == self._at:
                self.dead.set()
                return "lost"
        return ""


class Watcher:
    """Every state of the pods that the server ever shows: who had a node at any time."""

    def __init__(self, client: Client) -> None:
        self.ever: set[str] = set()
        self._informer = Informer(client, PODS, "default", on_change=self._see)

    def _see(self, old: Obj | None, new: Obj | None) -> None:
        if new is not None and new["spec"].get("nodeName"):
            self.ever.add(name_of(new))

    async def __aenter__(self) -> Watcher:
        self._task = asyncio.ensure_future(self._informer.run())
        await self._informer.synced()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def fair(pods: dict[str, str]) -> None:
    """No node has more than it can hold."""
    crowd = Counter(node for node in pods.values() if node)
    assert all(count <= 3 for count in crowd.values()), pods


async def life_and_death(faulty: FaultyApi, client: Client, calm: Client, at: int, counts: tuple[str, ...]) -> int:
    """Two gangs of which one fits; the first scheduler dies, the second does the rest. Answers how much was written."""
    await sweep(calm)
    for name in ("n1", "n2"):
        await add_node(calm, name, cpu="3")
    await add_gang(calm, "one", 4)
    await add_gang(calm, "two", 4)
    async with Watcher(calm) as watcher:
        killer = await _die_and_go_on(faulty, client, calm, at, counts)
        await until(_answer(watcher.ever), lambda ever: ever >= set(GANG))
        assert watcher.ever == set(GANG), "the gang that did not fit never held anything"
        async with scheduling(client):
            for name in GANG:
                await calm.delete(PODS, name, "default", {"gracePeriodSeconds": 0})
            await phase(calm, "two", "Running")
    return killer.writes


def _answer(what: T) -> Callable[[], Awaitable[T]]:
    async def ask() -> T:
        return what

    return ask


async def _die_and_go_on(faulty: FaultyApi, client: Client, calm: Client, at: int, counts: tuple[str, ...]) -> Killer:
    killer = Killer(faulty, at, counts)
    first = asyncio.ensure_future(Scheduler(client, NAMES).run())
    if at:
        await asyncio.wait_for(killer.dead.wait(), 20)
    else:
        await phase(calm, "one", "Running")
        await event(calm, "two-0", lambda m: "of 4 can be placed" in m)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    fair(await nodes_of(calm))
    faulty.rule = lambda request: ""
    async with scheduling(client):
        await placed(calm, GANG)
        await phase(calm, "one", "Running")
        await event(calm, "two-0", lambda m: "2 of 4 can be placed" in m)
        fair(await nodes_of(calm))
    return killer


BINDINGS = ("/binding", "/podgroups/")


def test_the_scheduler_dies_after_each_of_the_writes_that_bind(real: Access) -> None:
    async def work(faulty: FaultyApi, client: Client, calm: Client) -> None:
        for at in range(1, 7):  # Inqueue for each, four bindings, Running
            assert await life_and_death(faulty, client, calm, at, BINDINGS) == at

    go(real, work)


@pytest.mark.nightly
def test_the_scheduler_dies_after_each_write(real: Access) -> None:
    async def work(faulty: FaultyApi, client: Client, calm: Client) -> None:
        every = await life_and_death(faulty, client, calm, 0, ("/",))
        assert every > 10
        for at in range(1, every):
            assert await life_and_death(faulty, client, calm, at, ("/",)) == at

    go(real, work, 280)


def test_bindings_of_a_gang_fail(real: Access) -> None:
    async def work(faulty: FaultyApi, client: Client, calm: Client) -> None:
        for name in ("n1", "n2"):
            await add_node(calm, name, cpu="3")

        kinds = {"one-0": "409", "one-1": "500", "one-2": "lost", "one-3": "drop"}
        faulty.rule = lambda request: kinds.pop(request.path.split("/")[-2], "") if "/binding" in request.path else ""
        async with scheduling(client):
            await add_gang(calm, "one", 4)
            await add_gang(calm, "two", 3)
            await placed(calm, GANG)
            await phase(calm, "one", "Running")
            assert sorted(faulty.fired) == ["409", "500", "drop", "lost"]
            await event(calm, "two-0", lambda m: "2 of 3 can be placed" in m)
            pods = await nodes_of(calm)
            fair(pods)
            assert not any(node for name, node in pods.items() if name.startswith("two")), pods

    go(real, work)


def test_the_places_of_a_gang_are_its_own_until_the_fate_of_all_its_bindings_is_known(real: Access) -> None:
    """One of them had its node, and the reply was lost: meanwhile nobody else takes what the others are to have."""

    async def work(faulty: FaultyApi, client: Client, calm: Client) -> None:
        for name in ("n1", "n2"):
            await add_node(calm, name, cpu="3")
        kinds = {"one-0": ["500"], "one-1": ["500"], "one-2": ["lost"], "one-3": ["500"]}
        looks = ["500"] * 5

        def rule(request: web.Request) -> str:
            if request.path.endswith("/binding"):
                left = kinds.get(request.path.split("/")[-2], [])
            else:
                left = looks if request.path.endswith("/pods/one-2") else []
            return left.pop() if left else ""

        faulty.rule = rule
        async with scheduling(client):
            await add_gang(calm, "one", 4)
            await until(_answer(faulty.fired), lambda fired: len(fired) > 5)
            await add_gang(calm, "two", 3, priorityClassName="system-cluster-critical")
            await placed(calm, GANG)
            await phase(calm, "one", "Running")
            assert len(faulty.fired) == 9
            await event(calm, "two-0", lambda m: "2 of 3 can be placed" in m)
            fair(await nodes_of(calm))

    go(real, work)


def test_half_a_gang_that_cannot_be_completed_is_released(real: Access) -> None:
    """A scheduler died in between, and its place was taken by somebody else."""

    async def work(faulty: FaultyApi, client: Client, calm: Client) -> None:
        await add_node(calm, "n1", cpu="3")
        await add_group(calm, "one", 4)
        await calm.patch(POD_GROUPS, "one", {"status": {"phase": "Inqueue"}}, "default", sub="status")
        for i in range(4):
            pod = await add_member(calm, "one", i)
            if i < 2:
                binding = {"metadata": {"name": name_of(pod)}, "target": {"kind": "Node", "name": "n1"}}
                await calm.request("POST", PODS.path("default", name_of(pod), "binding"), binding)
        assert (await nodes_of(calm))["one-1"] == "n1"

        async def leaving() -> list[str]:
            pods = (await calm.list(PODS, "default"))["items"]
            return sorted(name_of(pod) for pod in pods if pod["metadata"].get("deletionTimestamp"))

        async with scheduling(client):
            assert await until(leaving, lambda names: len(names) == 2) == ["one-0", "one-1"]
            text = await event(calm, "one-0", lambda m: m.startswith("GangReleased"))
            assert text.startswith('GangReleased: Gang "default/one" was left with 2 of 4 pods bound')
            await add_gang(calm, "two", 3)
            await event(calm, "two-0", lambda m: "1 of 3 can be placed" in m)
            for name in ("one-0", "one-1"):  # their node says that they have ended
                await calm.delete(PODS, name, "default", {"gracePeriodSeconds": 0})
            await phase(calm, "two", "Running")

    go(real, work)


def test_a_pod_of_a_gang_vanishes_while_it_is_bound(real: Access) -> None:
    async def work(faulty: FaultyApi, client: Client, calm: Client) -> None:
        await add_node(calm, "n1", cpu="4")
        gone = asyncio.Event()

        def rule(request: Any) -> str:
            if request.path.endswith("one-3/binding") and not gone.is_set():
                gone.set()
                return "404"
            return ""

        faulty.rule = rule
        async with scheduling(client):
            await add_gang(calm, "one", 4)
            await asyncio.wait_for(gone.wait(), 20)
            await placed(calm, GANG)
            await phase(calm, "one", "Running")

    go(real, work)


def test_pods_of_others_are_left_alone(real: Access) -> None:
    """Pods with nodes in a group that we never let in: no half gang of ours, so it is completed pod by pod."""

    async def work(faulty: FaultyApi, client: Client, calm: Client) -> None:
        await add_node(calm, "n1", cpu="2")
        await add_group(calm, "one", 3)
        await add_pod(calm, "one-0", "1", {"scheduling.k8s.io/group-name": "one"}, nodeName="n1")
        async with scheduling(client):
            await add_member(calm, "one", 1)
            await placed(calm, ["one-1"])
            await phase(calm, "one", "Unknown")
            await add_member(calm, "one", 2)
            await event(calm, "one-2", lambda m: "2 of 3 can be placed" in m)
            for name in ("one-0", "one-1"):
                assert not (await calm.get(PODS, name, "default"))["metadata"].get("deletionTimestamp")

    go(real, work)
