"""The scheduler against a real API server: pods by themselves, gangs, and what people see of them."""

from __future__ import annotations

from typing import Any

from faultyapi import FaultyApi
from objects import (
    add_gang,
    add_group,
    add_member,
    add_node,
    add_pod,
    event,
    events,
    go,
    nodes_of,
    phase,
    placed,
    scheduling,
    until,
)

from onward.kube.access import Access
from onward.kube.client import Client
from onward.kube.objects import PODS, PRIORITY_CLASSES
from onward.scheduler.gangs import POD_GROUPS, QUEUES


def test_pods_get_nodes_and_no_place_is_given_twice(real: Access) -> None:
    async def work(faulty: FaultyApi, client: Client, calm: Client) -> None:
        refused: list[str] = []

        def rule(request: Any) -> str:
            if request.path.endswith("/binding") and len(refused) < 4:
                refused.append(["409", "500", "lost", "drop"][len(refused)])
                return refused[-1]
            return ""

        faulty.rule = rule
        async with scheduling(client):
            await add_node(calm, "n1")
            await add_node(calm, "n2")
            names = [f"p{i}" for i in range(8)]
            for name in names:
                await add_pod(calm, name)
            await add_pod(calm, "foreign", schedulerName="somebody-else")
            pods = await placed(calm, names)
            assert sorted(pods[name] for name in names) == ["n1"] * 4 + ["n2"] * 4, "8 cpus are asked for, 8 are there"
            assert pods["foreign"] == ""
            assert faulty.fired == ["409", "500", "lost", "drop"]
            await add_pod(calm, "more", schedulerName="volcano")
            text = await event(calm, "more", lambda m: "0/2" in m)
            assert text == "FailedScheduling: 0/2 nodes are available: 2 Insufficient cpu."
            await calm.delete(PODS, "p0", "default", {"gracePeriodSeconds": 0})
            found = await placed(calm, ["more"])
            assert found["more"] == pods["p0"], "what becomes free is given away at once"

    go(real, work)


def test_two_gangs_that_do_not_both_fit(real: Access) -> None:
    async def work(faulty: FaultyApi, client: Client, calm: Client) -> None:
        await add_node(calm, "n1")
        await add_node(calm, "n2")
        async with scheduling(client):
            await add_gang(calm, "one", 6)
            status = await phase(calm, "one", "Running")
            assert [(c["type"], c["status"]) for c in status["conditions"]][-1] == ("Scheduled", "True")
            await add_gang(calm, "two", 5)
            text = await event(calm, "two-3", lambda m: "0/2" in m)
            assert text == (
                'FailedScheduling: Gang "default/two" gets rejected due to member Pod "two-2" is unschedulable with '
                'reason "0/2 nodes are available: 2 Insufficient cpu."; 2 of 5 can be placed'
            )
            await event(calm, "two", lambda m: m.startswith("Unschedulable: 3/5 tasks in gang unschedulable"))
            status = await phase(calm, "two", "Inqueue")
            last = status["conditions"][-1]
            assert (last["type"], last["status"], last["reason"]) == ("Unschedulable", "True", "NotEnoughResources")
            assert not any((await nodes_of(calm, "two-")).values()), "a gang that waits holds nothing"
            queue = await until(
                lambda: calm.get(QUEUES, "default"), lambda q: (q.get("status") or {}).get("inqueue") == 1
            )
            assert queue["status"] | {"allocated": {"cpu": "6"}, "running": 1, "state": "Open"} == queue["status"]
            await add_gang(calm, "three", 6)
            await event(calm, "three-0", lambda m: "2 of 6 can be placed" in m)
            told = await events(calm, "two-3")
            assert len({e["message"] for e in told}) == len(told), "the same thing is said once"
            assert all(e["count"] == 1 for e in told), "though several passes were made"
            for i in range(6):
                await calm.delete(PODS, f"one-{i}", "default", {"gracePeriodSeconds": 0})
            await placed(calm, [f"two-{i}" for i in range(5)])
            status = await phase(calm, "two", "Running")
            told = {c["type"]: c["status"] for c in status["conditions"]}
            assert told == {"Unschedulable": "False", "Scheduled": "True"}

    go(real, work)


def test_replacement_pods_of_a_running_gang(real: Access) -> None:
    async def work(faulty: FaultyApi, client: Client, calm: Client) -> None:
        for name in ("n1", "n2", "n3"):
            await add_node(calm, name, cpu="3")
        async with scheduling(client):
            await add_gang(calm, "g", 4)
            await phase(calm, "g", "Running")
            before = await nodes_of(calm, "g-")
            await calm.delete(PODS, "g-1", "default", {"gracePeriodSeconds": 0})
            await phase(calm, "g", "Unknown")
            await add_member(calm, "g", 1, **{"onward.dev/previous-node": before["g-1"]})
            await phase(calm, "g", "Running")
            assert (await nodes_of(calm, "g-"))["g-1"] == before["g-1"], "where its image is"
            await calm.delete(PODS, "g-1", "default", {"gracePeriodSeconds": 0})
            await phase(calm, "g", "Unknown")
            bad = {"onward.dev/avoid-nodes": before["g-1"], "onward.dev/exclude-nodes": before["g-2"]}
            await add_member(calm, "g", 1, **bad)
            await phase(calm, "g", "Running")
            assert (await nodes_of(calm, "g-"))["g-1"] not in (before["g-1"], before["g-2"])
            for i in range(4):
                await calm.delete(PODS, f"g-{i}", "default", {"gracePeriodSeconds": 0})
            for i in range(3):
                await add_member(calm, "g", i)
            await event(calm, "g-0", lambda m: "3 of 4 pods exist" in m)
            await phase(calm, "g", "Inqueue")
            pods = await nodes_of(calm, "g-")
            assert set(pods.values()) == {""}, "when all are gone it is all or nothing again"
            await add_member(calm, "g", 3)
            await phase(calm, "g", "Running")

    go(real, work)


def test_groups_that_are_not_let_in(real: Access) -> None:
    async def work(faulty: FaultyApi, client: Client, calm: Client) -> None:
        await add_node(calm, "n1")
        async with scheduling(client):
            await add_group(calm, "huge", 1, minResources={"cpu": "100"})
            status = await phase(calm, "huge", "Pending")
            assert "the cluster is too small: cpu" in status["conditions"][-1]["message"]
            await add_group(calm, "lost", 1, queue="nowhere")
            await phase(calm, "lost", "Pending")
            await event(calm, "lost", lambda m: 'queue "nowhere" does not exist' in m)
            await add_group(calm, "fits", 1, minResources={"cpu": "4"})
            await phase(calm, "fits", "Inqueue")
            limited = {"apiVersion": QUEUES.api_version, "kind": "Queue", "metadata": {"name": "nowhere"}}
            await calm.create(QUEUES, {**limited, "spec": {"capability": {"cpu": "1"}}})
            await phase(calm, "lost", "Inqueue")
            await add_member(calm, "lost", 0)
            await add_member(calm, "lost", 1)
            await placed(calm, ["lost-0"])
            await event(calm, "lost-1", lambda m: 'queue "nowhere" may not use more cpu (its capability)' in m)
            await calm.delete(QUEUES, "nowhere")
            await add_member(calm, "unborn", 0)
            await event(calm, "unborn-0", lambda m: 'PodGroup "default/unborn" does not exist' in m)
            await add_group(calm, "unborn", 1)
            await placed(calm, ["unborn-0"])

    go(real, work)


def test_priority_classes_and_patience(real: Access) -> None:
    async def work(faulty: FaultyApi, client: Client, calm: Client) -> None:
        await add_node(calm, "n1")
        urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}}
        await calm.create(PRIORITY_CLASSES, {**urgent, "value": 1000})
        await add_pod(calm, "running", cpu="2", schedulerName="default-scheduler")
        async with scheduling(client, patience_s=0.0):
            await placed(calm, ["running"])
            await add_gang(calm, "big", 4)
            await event(calm, "big-0", lambda m: "2 of 4 can be placed" in m)
            await add_gang(calm, "small", 1)
            text = await event(calm, "small-0", lambda m: "set aside" in m)
            assert 'node(s) were set aside for gang "default/big"' in text
            await add_group(calm, "next", 1, minResources={"cpu": "4"})
            await phase(calm, "next", "Inqueue")  # it has waited, and would fit into an empty cluster
            await add_group(calm, "never", 1, minResources={"cpu": "5"})
            await phase(calm, "never", "Pending")
            await add_gang(calm, "high", 1, priorityClassName="urgent")
            await placed(calm, ["high-0"])
            for name in ("running", "high-0"):
                await calm.delete(PODS, name, "default", {"gracePeriodSeconds": 0})
            await phase(calm, "big", "Running")
            assert await nodes_of(calm, "small-") == {"small-0": ""}
            await calm.delete(POD_GROUPS, "big", "default")
        await calm.delete(PRIORITY_CLASSES, "urgent")

    go(real, work)
