"""Pods come and go while processes of the cluster are killed: in the end everything is as the API says, and no more."""

from __future__ import annotations

import json
import os
import random
import signal

import pytest
from kernel import alive
from onecluster import OneCluster, a_pod

from onward.kube.objects import PODS, name_of
from onward.local.plan import cluster_id

PARTS = ("node-1", "node-2", "controllers", "network", "api", "supervisor", "guard")


def pod(name: str, label: object) -> str:
    patient = [{"operator": "Exists", "effect": "NoExecute"}]  # a node that is slow to come back must not cost a pod
    return a_pod(name, grace=1, labels={"app": f"storm-{label}"}, tolerations=patient)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
def test_a_storm(cluster: OneCluster, seed: int) -> None:
    chance = random.Random(seed)
    alive_pods: set[str] = set()
    for step in range(25):
        for i in range(chance.randrange(1, 4)):
            name = f"storm-{seed}-{step}-{i}"
            cluster.until(lambda name=name: _tries(lambda: cluster.apply(pod(name, seed))), "created")
            alive_pods.add(name)
        if alive_pods and chance.random() < 0.7:
            name = chance.choice(sorted(alive_pods))
            alive_pods.discard(name)
            grace = chance.choice([None, 0, 1])
            cluster.until(lambda name=name, grace=grace: _tries(lambda: cluster.delete(name, grace)), "deleted")
        if chance.random() < 0.6:
            part = chance.choice(PARTS)
            cluster.until(lambda part=part: alive(cluster.part(part)), f"{part} runs")
            os.kill(cluster.part(part), signal.SIGKILL)
    for name in sorted(alive_pods):
        cluster.ready(name)

    def settled() -> bool:
        found = {name_of(p): p["metadata"]["uid"] for p in _pods(cluster, seed)}
        places = {p.name for p in (cluster.state / "nodes").glob("*/pods/*")} & set(found.values())
        return set(found) == alive_pods and len(places) == len(found)

    try:
        cluster.until(settled, "what runs is what the API says")
    except AssertionError as e:
        odd = [p for p in _pods(cluster, seed) if name_of(p) not in alive_pods]
        raise AssertionError(f"wanted {sorted(alive_pods)}, too many: {json.dumps(odd, indent=1)}\n{e}") from e
    for name in sorted(alive_pods):
        pids = cluster.until(lambda name=name: cluster.pids(name), "its process")
        assert len(pids) == 1
        cluster.until(lambda name=name: _tries(lambda: cluster.delete(name, 0)), "deleted")
    cluster.until(lambda: not _pods(cluster, seed), "all gone")
    left = cluster_id(cluster.state)
    cluster.until(
        lambda: len([n for n in os.listdir("/run/netns") if n.startswith(f"{left}-p")]) <= _other(cluster), "namespaces"
    )


def _tries(call: object) -> bool:
    """A write whose reply was lost is looked at again."""
    from onward.kube.client import ApiError, Unreachable

    assert callable(call)
    try:
        call()
    except Unreachable:
        return False
    except ApiError as e:
        return e.code in (404, 409)
    return True


def _pods(cluster: OneCluster, seed: int) -> list[dict[str, object]]:
    found: list[dict[str, object]] = cluster.call(
        cluster.client.list(PODS, "default", labelSelector=f"app=storm-{seed}")
    )["items"]
    return found


def _other(cluster: OneCluster) -> int:
    """Pods of other tests that are still there."""
    every = cluster.call(cluster.client.list(PODS))["items"]
    return len([p for p in every if p["spec"].get("nodeName")])


def test_supervisor_and_guard_at_once(cluster: OneCluster) -> None:
    old = {part: cluster.part(part) for part in ("supervisor", "guard")}
    for pid in old.values():
        os.kill(pid, signal.SIGKILL)
    for part, pid in old.items():
        cluster.until(
            lambda part=part, pid=pid: cluster.part(part) != pid and alive(cluster.part(part)), f"a new {part}"
        )
    os.kill(cluster.part("network"), signal.SIGKILL)
    cluster.until(lambda: alive(cluster.part("network")), "it does its work")


def test_pods_that_a_killed_agent_had_begun(cluster: OneCluster) -> None:
    """The agent dies between making a pod's place and starting it."""
    for i in range(6):
        text = pod(f"begun-{i}", "begun")
        cluster.until(lambda text=text: _tries(lambda: cluster.apply(text)), "created")
        if i % 2:
            os.kill(cluster.part(f"node-{1 + i // 2 % 2}"), signal.SIGKILL)
            cluster.until(lambda i=i: alive(cluster.part(f"node-{1 + i // 2 % 2}")), "the agent is back")
    for i in range(6):
        cluster.ready(f"begun-{i}")
        assert len(cluster.pids(f"begun-{i}")) == 1
        assert cluster.container(f"begun-{i}")["restartCount"] == 0
    for i in range(6):
        cluster.delete(f"begun-{i}", 0)
