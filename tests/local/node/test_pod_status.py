"""What a status says of the pod that it belongs to."""

from __future__ import annotations

from typing import Any

from onward.local.node import podstatus

ADDRESSES = {"hostIP": "10.0.0.1"}


def _pod(generation: int) -> dict[str, Any]:
    return {"metadata": {"name": "p", "generation": generation}, "spec": {"containers": [{"name": "c"}]}}


def test_whoever_waits_for_a_change_sees_that_it_was_seen() -> None:
    first = podstatus.status(_pod(1), {}, now=1.0, addresses=ADDRESSES, started_at=1.0)
    again = podstatus.status({**_pod(2), "status": first}, {}, now=2.0, addresses=ADDRESSES, started_at=1.0)
    for found, generation in ((first, 1), (again, 2)):
        assert found["observedGeneration"] == generation
        assert {c["observedGeneration"] for c in found["conditions"]} == {generation}
    times = [[c["lastTransitionTime"] for c in found["conditions"]] for found in (first, again)]
    assert times[0] == times[1]
    assert podstatus.failed(_pod(3), "r", "m", ADDRESSES, 1.0)["observedGeneration"] == 3
