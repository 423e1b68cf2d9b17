"""What happens to nodes: they stop, are cut off, drained, not quite well."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from kernel import alive
from onecluster import OneCluster, a_pod, onward_local

from onward.kube.objects import NODES
from onward.local.plan import cluster_id
from onward.local.up import is_ready


def pod_on(node: str, name: str) -> str:
    return a_pod(name, grace=1, nodeSelector={"kubernetes.io/hostname": node})


def node(cluster: OneCluster, name: str) -> dict[str, Any]:
    return cluster.call(cluster.client.get(NODES, name))


def taints(cluster: OneCluster, name: str) -> set[tuple[str, str]]:
    return {(t["key"], t["effect"]) for t in node(cluster, name)["spec"].get("taints") or []}


@pytest.fixture
def healed(cluster: OneCluster) -> Iterator[OneCluster]:
    yield cluster
    for name in ("node-1", "node-2"):
        if (cluster.state / "nodes" / name / "cut").exists():
            onward_local("chaos", "heal", name, state=cluster.state)
        if (cluster.state / "nodes" / name / "stopped").exists():
            onward_local("chaos", "start", name, state=cluster.state)
        cluster.call(cluster.client.patch(NODES, name, {"spec": {"unschedulable": None}}))


def test_a_node_that_stops(healed: OneCluster) -> None:
    healed.apply(pod_on("node-2", "chaos-stop"))
    healed.ready("chaos-stop")
    [pid] = [p for p in healed.pids("chaos-stop") if alive(p)][:1]
    onward_local("chaos", "stop", "node-2", state=healed.state)
    assert not alive(pid)
    healed.until(lambda: not is_ready(node(healed, "node-2")), "NotReady")
    conditions = {c["type"]: c for c in node(healed, "node-2")["status"]["conditions"]}
    assert conditions["Ready"]["status"] == "Unknown"
    assert conditions["Ready"]["message"] == "Kubelet stopped posting node status."
    wanted = ("node.kubernetes.io/unreachable", "NoExecute")
    healed.until(lambda: wanted in taints(healed, "node-2"), "a taint")
    healed.until(lambda: healed.pod("chaos-stop")["metadata"].get("deletionTimestamp"), "eviction")
    ready = next(c for c in healed.status("chaos-stop")["conditions"] if c["type"] == "Ready")
    assert ready["status"] == "False"
    onward_local("chaos", "start", "node-2", state=healed.state)
    healed.gone("chaos-stop")  # the node is back, and sees that it should end
    healed.until(lambda: not taints(healed, "node-2"), "no taints any more")


def connected(cluster: OneCluster, number: int) -> bool:
    """Is the cable of a node plugged in?"""
    switch = f"{cluster_id(cluster.state)}-switch"
    command = ["ip", "-n", switch, "-json", "link", "show", f"n{number}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    return "UP" in json.loads(done.stdout)[0]["flags"]


def test_a_node_that_is_cut_off(healed: OneCluster) -> None:
    healed.apply(pod_on("node-1", "chaos-cut"))
    healed.ready("chaos-cut")
    pids, place = healed.pids("chaos-cut"), healed.state / "nodes" / "node-1"
    assert connected(healed, 1)
    onward_local("chaos", "partition", "node-1", state=healed.state)
    healed.until(lambda: not is_ready(node(healed, "node-1")), "NotReady")
    healed.until(lambda: healed.pod("chaos-cut")["metadata"].get("deletionTimestamp"), "eviction")
    assert healed.pids("chaos-cut") == pids, "it runs on: nobody can tell it"
    assert not connected(healed, 1)
    old = healed.part("node-1")
    os.kill(old, signal.SIGKILL)
    healed.until(lambda: healed.part("node-1") != old and (place / "pid").read_text() != str(old), "a new agent")
    assert not connected(healed, 1), "an agent that is started anew does not mend the cable"
    onward_local("chaos", "heal", "node-1", state=healed.state)
    healed.gone("chaos-cut")
    assert not [pid for pid in pids if alive(pid)]


def test_drain_and_sub_health(healed: OneCluster) -> None:
    healed.apply(pod_on("node-1", "chaos-drain"))
    healed.ready("chaos-drain")
    onward_local("chaos", "drain", "node-1", state=healed.state)
    healed.gone("chaos-drain")
    assert node(healed, "node-1")["spec"]["unschedulable"] is True
    healed.apply(pod_on("node-1", "chaos-waits"))
    healed.event("chaos-waits", "1 node(s) were unschedulable")
    onward_local("chaos", "sub-health", "node-1", "--text", "fan slow", state=healed.state)
    condition = next(c for c in node(healed, "node-1")["status"]["conditions"] if c["type"] == "SubHealthy")
    assert (condition["status"], condition["message"]) == ("True", "fan slow")
    assert "sub-healthy" in onward_local("status", state=healed.state).stdout
    healed.delete("chaos-waits")
    onward_local("chaos", "heal", "node-1", state=healed.state)
    assert not [c for c in node(healed, "node-1")["status"]["conditions"] if c["type"] == "SubHealthy"]
    p = onward_local("chaos", "stop", "node-9", state=healed.state, check=False)
    assert p.returncode == 2
    assert "the nodes are node-1, node-2, node-3" in p.stderr
