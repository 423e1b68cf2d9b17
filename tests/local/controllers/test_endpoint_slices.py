"""What stands behind a Service, as a real endpoints controller writes it down."""

from __future__ import annotations

from typing import Any

from onward.local.controllers.endpoints import endpoint_slices, endpoints

SERVICE: dict[str, Any] = {
    "metadata": {"name": "web", "namespace": "here", "uid": "s", "labels": {"l": "v"}},
    "spec": {
        "clusterIP": "None",
        "ports": [
            {"name": "a", "port": 80, "targetPort": "web"},
            {"name": "b", "port": 81, "protocol": "UDP", "appProtocol": "example.com/x"},
        ],
    },
}


def _pod(name: str, address: str, port: int, *, ready: bool = True, leaving: bool = False) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "here", "uid": name}
    if leaving:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    conditions = [{"type": "Ready", "status": str(ready)}]
    spec = {"nodeName": "n", "containers": [{"name": "c", "ports": [{"name": "web", "containerPort": port}]}]}
    return {"metadata": metadata, "spec": spec, "status": {"podIP": address, "conditions": conditions}}


def test_pods_whose_named_ports_differ_are_in_slices_of_their_own() -> None:
    pods = [_pod("p", "10.0.0.1", 8080), _pod("q", "10.0.0.2", 9090), _pod("r", "10.0.0.3", 8080)]
    slices = endpoint_slices(SERVICE, pods)
    assert [each["metadata"]["name"] for each in slices] == ["web-onward", "web-onward-1"]
    assert [[e["addresses"][0] for e in each["endpoints"]] for each in slices] == [
        ["10.0.0.1", "10.0.0.3"],
        ["10.0.0.2"],
    ]
    assert [each["ports"][0]["port"] for each in slices] == [8080, 9090]
    assert slices[0]["ports"][1] == {"name": "b", "port": 81, "protocol": "UDP", "appProtocol": "example.com/x"}
    assert slices[0]["metadata"]["labels"]["service.kubernetes.io/headless"] == ""
    assert [each["ports"][0]["port"] for each in endpoints(SERVICE, pods)["subsets"]] == [8080, 9090]


def test_a_pod_that_leaves_still_serves_and_is_not_ready() -> None:
    leaving = _pod("p", "10.0.0.1", 8080, leaving=True)
    (found,) = endpoint_slices(SERVICE, [leaving])
    assert found["endpoints"][0]["conditions"] == {"ready": False, "serving": True, "terminating": True}
    assert endpoints(SERVICE, [leaving])["subsets"] == []


def test_without_pods_there_is_one_empty_slice() -> None:
    (found,) = endpoint_slices(SERVICE, [])
    assert (found["endpoints"], found["ports"]) == ([], [])
