"""Disruption budgets say what they allow, and evictions are held to it."""

from __future__ import annotations

from typing import Any

import pytest
from onecluster import OneCluster, a_pod

from onward.core import disruption
from onward.kube.client import ApiError
from onward.kube.objects import PODS
from onward.local.controllers.budgets import BUDGETS

BUDGET = """
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: two-stay}
spec: {minAvailable: 2, selector: {matchExpressions: [{key: app, operator: In, values: [budget]}]}}
"""


def test_what_it_allows_follows_its_pods(cluster: OneCluster) -> None:
    def allowed() -> tuple[int, int]:
        status = cluster.call(cluster.client.get(BUDGETS, "two-stay", "default")).get("status") or {}
        return status.get("currentHealthy", -1), status.get("disruptionsAllowed", -1)

    def evict(name: str) -> None:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
        cluster.call(cluster.client.request("POST", PODS.path("default", name, "eviction"), body))

    cluster.apply(BUDGET + "".join("---\n" + a_pod(f"budget-{n}", labels={"app": "budget"}) for n in range(3)))
    cluster.until(lambda: allowed() == (3, 1), "all are ready, one may go")
    evict("budget-0")
    cluster.gone("budget-0")
    cluster.until(lambda: allowed() == (2, 0), "no more")
    with pytest.raises(ApiError, match="violate the pod's disruption budget"):
        evict("budget-1")
    cluster.call(cluster.client.delete(BUDGETS, "two-stay", "default"))
    for n in (1, 2):
        cluster.delete(f"budget-{n}")


@pytest.mark.parametrize(
    ("spec", "count", "least"),
    [
        ({"minAvailable": 2}, 5, 2),
        ({"minAvailable": "50%"}, 5, 3),
        ({"maxUnavailable": 1}, 5, 4),
        ({"maxUnavailable": "50%"}, 5, 2),
        ({"maxUnavailable": 9}, 5, 0),
    ],
)
def test_how_many_must_stay(spec: dict[str, Any], count: int, least: int) -> None:
    assert disruption.needed(spec, count) == least


def test_a_condition_keeps_its_time() -> None:
    budget = {"metadata": {"generation": 3}, "spec": {"minAvailable": 1}}
    first = disruption.status(budget, [], "then")
    assert first["disruptionsAllowed"] == 0
    assert first["conditions"][0]["reason"] == "InsufficientPods"
    assert disruption.status({**budget, "status": first}, [], "now") == first
