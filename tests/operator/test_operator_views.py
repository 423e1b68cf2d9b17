"""Pods as the operator reads them: by their own fault, or by somebody else's."""

from __future__ import annotations

from typing import Any

import pytest

from onward.operator.views import pod_seen

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
