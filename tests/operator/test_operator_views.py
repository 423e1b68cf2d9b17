"""Pods as the operator reads them: by their own fault, or by somebody else's."""

from __future__ import annotations

from typing import Any

import pytest

from onward.operator.views import over, pod_seen

MADE = "2026-01-01T00:00:00Z"
BEGAN = [{"name": "ascend", "state": {"terminated": {"exitCode": 1}}}]
AGAIN = [{"name": "ascend", "state": {"waiting": {}}, "lastState": {"terminated": {"exitCode": 1}}}]
WAITED = [{"name": "ascend", "state": {"waiting": {"reason": "ContainerCreating"}}}]
DISRUPTED = [{"type": "DisruptionTarget", "status": "True"}]

# status of a failed pod -> ended by the cluster, never begun
TABLE: dict[str, tuple[dict[str, Any], tuple[bool, bool]]] = {
    "its program": ({"containerStatuses": BEGAN}, (False, False)),
    "its program, with a reason": ({"reason": "Error", "containerStatuses": BEGAN}, (False, False)),
    "its program, which had begun before": ({"reason": "Error", "containerStatuses": AGAIN}, (False, False)),
    "its own deadline": ({"reason": "DeadlineExceeded"}, (False, False)),
    "evicted": ({"reason": "Evicted", "containerStatuses": BEGAN}, (True, False)),
    "a drain": ({"conditions": DISRUPTED, "containerStatuses": BEGAN}, (True, False)),
    "its node was fuller than the scheduler knew": ({"reason": "OutOfcpu"}, (True, True)),
    "an accelerator that was promised twice": ({"reason": "OutOfhuawei.com/Ascend910"}, (True, True)),
    "a device plugin": ({"reason": "UnexpectedAdmissionError", "containerStatuses": WAITED}, (True, True)),
    "the topology manager": ({"reason": "TopologyAffinityError"}, (True, True)),
}


@pytest.mark.parametrize("row", TABLE)
def test_whose_fault_it_was(row: str) -> None:
    status, wanted = TABLE[row]
    pod = {"metadata": {"name": "p", "uid": "u", "creationTimestamp": MADE}, "spec": {}}
    seen = pod_seen({**pod, "status": {"phase": "Failed", **status}}, ("Worker", 0), "ascend", "")
    assert (seen.evicted, seen.refused) == wanted


SIDE = {"name": "side", "state": {"running": {}}}
LATE, GRACE = "2026-01-01T00:01:30Z", 30  # it was deleted at 00:01:00


def trains(code: int | None, at: str = MADE) -> dict[str, Any]:
    state = {"running": {}} if code is None else {"terminated": {"exitCode": code, "finishedAt": at}}
    return {"name": "ascend", "state": state}


# restartPolicy, its own, exit code of the container that trains -> what becomes of its pod, beside one that runs on
ENDS: list[tuple[str, str, int | None, str]] = [
    ("Never", "", None, "Running"),
    ("Never", "", 3, "Failed"),
    ("Never", "", 0, "Succeeded"),
    ("OnFailure", "", 3, "Running"),
    ("OnFailure", "", 0, "Succeeded"),
    ("Always", "", 0, "Running"),
    ("Always", "Never", 3, "Failed"),
    ("Never", "Always", 3, "Running"),
]


@pytest.mark.parametrize(("policy", "own", "code", "phase"), ENDS)
def test_a_pod_is_over_when_what_trains_in_it_has_ended_for_good(
    policy: str, own: str, code: int | None, phase: str
) -> None:
    """A sidecar runs on for ever: nobody may wait for it."""
    main = {"name": "ascend", **({"restartPolicy": own} if own else {})}
    pod = {
        "metadata": {"name": "p", "uid": "u", "creationTimestamp": MADE},
        "spec": {"restartPolicy": policy, "containers": [{"name": "side"}, main]},
        "status": {"phase": "Running", "containerStatuses": [SIDE, trains(code)]},
    }
    seen = pod_seen(pod, ("Worker", 0), "ascend", "")
    assert (seen.phase, seen.lingers) == (phase, phase != "Running")
    assert over(pod) == (phase != "Running")


@pytest.mark.parametrize("phase", ["Failed", "Succeeded", "Running"])
@pytest.mark.parametrize(("ended", "dismissed"), [("2026-01-01T00:00:59Z", False), ("2026-01-01T00:01:00Z", True)])
def test_a_pod_that_ends_because_it_was_deleted_is_told_from_one_that_had_ended(
    phase: str, ended: str, dismissed: bool
) -> None:
    code = 0 if phase == "Succeeded" else 143
    metadata = {"name": "p", "uid": "u", "creationTimestamp": MADE, "deletionTimestamp": LATE}
    pod = {
        "metadata": {**metadata, "deletionGracePeriodSeconds": GRACE},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "ascend"}]},
        "status": {"phase": phase, "containerStatuses": [trains(code, ended)]},
    }
    seen = pod_seen(pod, ("Worker", 0), "ascend", "")
    assert seen.dismissed == dismissed
    assert seen.phase == ("Succeeded" if phase == "Succeeded" else "Failed")


def test_why_a_pod_has_no_node_is_told_to_its_end() -> None:
    """What stands last is how many of the gang can be placed."""
    taints = ", ".join(f"1 node(s) had untolerated taint {{team: {name}}}" for name in "abc")
    reason = f'"0/5 nodes are available: 1 node(s) didn\'t match pod anti-affinity rules, {taints}."'
    gang = f'"default/{"n" * 55}-5816006d-a648-42ca-b0fc-4c292220479f"'
    why = f'Gang {gang} gets rejected due to member Pod "w-0" is unschedulable with reason {reason}'
    why = f"{why}; 1 of 2 can be placed"
    condition = {"type": "PodScheduled", "status": "False", "message": why}
    pod = {"metadata": {"name": "p", "uid": "u", "creationTimestamp": MADE}, "spec": {}}
    seen = pod_seen({**pod, "status": {"phase": "Pending", "conditions": [condition]}}, ("Worker", 0), "ascend", "")
    assert seen.text == why
