"""The status of a PodGroup: phases and conditions."""

from __future__ import annotations

import pytest

from onward.core import podgroup
from onward.core.podgroup import Census


@pytest.mark.parametrize(
    ("old", "census", "refused", "new"),
    [
        ("", Census(), "too little", "Pending"),
        ("", Census(), "", "Inqueue"),
        ("Pending", Census(), "", "Inqueue"),
        ("Inqueue", Census(pending=4), "too little", "Inqueue"),  # once let in, it stays in
        ("Inqueue", Census(pending=2, held=2), "", "Inqueue"),  # half bound: nobody's idea of running
        ("Inqueue", Census(held=4), "", "Running"),
        ("Running", Census(pending=1, held=3), "", "Unknown"),
        ("Running", Census(held=2, succeeded=2), "", "Running"),
        ("Unknown", Census(held=4), "", "Running"),
        ("Running", Census(pending=4), "", "Inqueue"),  # all are new
        ("Running", Census(), "too little", "Pending"),
        ("Running", Census(succeeded=4), "", "Completed"),
        ("", Census(pending=3, held=1), "", "Unknown"),  # somebody else's doing
    ],
)
def test_phases(old: str, census: Census, refused: str, new: str) -> None:
    assert podgroup.phase(old, census, 4, refused) == new


def test_conditions() -> None:
    short = podgroup.not_ready(Census(pending=8), 8, 5, "0/2 nodes are available: 2 Insufficient cpu.")
    assert short == (
        "3/8 tasks in gang unschedulable: pod group is not ready, 8 Pending, 8 minAvailable; "
        "0/2 nodes are available: 2 Insufficient cpu."
    )
    too_small = podgroup.not_ready(Census(), 2, 0, "the cluster is too small: cpu 200 of 24")
    assert too_small == "pod group is not ready, 0 of 2 pods are there; the cluster is too small: cpu 200 of 24"
    waits = podgroup.condition("Unschedulable", "NotEnoughResources", short, "t1", "a")
    said = podgroup.conditions([], waits)
    again = podgroup.conditions(said, podgroup.condition("Unschedulable", "NotEnoughResources", short, "t2", "b"))
    assert again == said, "the same thing keeps its time"
    ready = podgroup.conditions(again, podgroup.condition("Scheduled", podgroup.READY, "", "t3", "b"))
    assert [(c["type"], c["status"], c["lastTransitionTime"]) for c in ready] == [
        ("Unschedulable", "False", "t3"),
        ("Scheduled", "True", "t3"),
    ]
    foreign = {"type": "Theirs", "status": "True"}
    assert foreign in podgroup.conditions([foreign], waits), "what is not ours is kept"


def test_who_is_let_in() -> None:
    total = {"cpu": 100, "nvidia.com/gpu": 8}
    assert podgroup.admit({}, total, {}) == ""
    assert podgroup.admit({"cpu": 60}, total, {"cpu": 60}) == "", "a fifth more than there is may wait with its pods"
    assert podgroup.admit({"cpu": 61, "nvidia.com/gpu": 1}, total, {"cpu": 60}) == (
        "the cluster has too little left: cpu 61m of 40m"
    ), "what is really left"
    assert podgroup.admit({"npu": 1, "cpu": 61}, total, {"cpu": 60}) == "the cluster is too small: npu 1 of 0"
    assert podgroup.admit({"cpu": 121}, total, {}) == "the cluster is too small: cpu 121m of 100m", "as it really is"
