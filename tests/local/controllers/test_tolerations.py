"""How long a pod stays on a node with a taint that it tolerates for a time."""

from __future__ import annotations

import time
from typing import Any

from onward.kube.objects import stamp
from onward.local import plan as plans
from onward.local.controllers.nodelife import NodeLifecycle, taints_since

PLAN = plans.Plan([plans.NodePlan("a", 1, {})], evict_s=7.0)


def node(**taint: str) -> dict[str, Any]:
    return {"metadata": {"name": "a"}, "spec": {"taints": [{"key": "k", "effect": "NoExecute", **taint}]}}


def due(age_s: float, seen: dict[Any, float], taint_node: dict[str, Any], seconds: int | None = 60) -> float:
    """Seconds from now until it must go."""
    lifecycle, now = NodeLifecycle(None, PLAN), time.time()  # type: ignore[arg-type]
    lifecycle._tainted = taints_since([taint_node], seen, now)
    tolerated = {"key": taint_node["spec"]["taints"][0]["key"], "operator": "Exists", "tolerationSeconds": seconds}
    pod = {
        "metadata": {"creationTimestamp": stamp(now - age_s)},
        "spec": {"nodeName": "a", "tolerations": [{k: v for k, v in tolerated.items() if v is not None}]},
    }
    return lifecycle._due(pod, taint_node["spec"]["taints"][0]) - now


def test_a_taint_of_kubectl_begins_when_it_is_seen() -> None:
    now = time.time()
    first = taints_since([node()], {}, now - 50)
    assert abs(due(1000, first, node()) - 10) < 2, "it says no time of its own, and was there 50 s ago"
    assert abs(due(1000, first, node(value="other")) - 60) < 2, "another taint"
    assert taints_since([{"metadata": {"name": "a"}}], first, now) == {}


def test_a_pod_that_comes_later_has_its_time() -> None:
    old = node(timeAdded=stamp(time.time() - 500))
    assert due(1000, {}, old) < 0
    assert abs(due(5, {}, old) - 55) < 2
    assert due(1000, {}, old, seconds=None) == float("inf")


def test_lost_nodes_are_given_up_after_the_time_of_the_cluster() -> None:
    lost = node(key="node.kubernetes.io/unreachable", timeAdded=stamp(time.time()))
    assert abs(due(1000, {}, lost, seconds=300) - 7) < 2
