"""Who is behind a service for which somebody wrote slices."""

from __future__ import annotations

from typing import Any

from onward.local.network.behind import from_slices, service_of
from onward.local.network.forward import Front, fronts
from onward.local.network.names import Answer, resolve


def a_slice(*endpoints: dict[str, Any], kind: str = "IPv4", **port: Any) -> dict[str, Any]:
    ports = [{"name": "", "protocol": "TCP", "port": 8081, **port}]
    metadata = {"name": "manual-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "manual"}}
    return {"metadata": metadata, "addressType": kind, "endpoints": list(endpoints), "ports": ports}


def test_slices_of_a_service_without_a_selector() -> None:
    ready = {"addresses": ["10.200.1.2"], "hostname": "one"}
    slices = [
        a_slice(ready, {"addresses": ["10.200.1.3"], "conditions": {"ready": False}}),
        a_slice({"addresses": ["10.200.1.4"], "conditions": {"ready": True}}),
        a_slice({"addresses": ["fd00::1"]}, kind="IPv6"),
        a_slice({"addresses": ["10.200.1.5"]}, name="other"),
    ]
    service = {"metadata": {"name": "manual"}, "spec": {"clusterIP": "10.96.0.9", "ports": [{"port": 81}]}}
    behind = from_slices(slices)
    assert fronts(service, behind) == {Front("10.96.0.9", 81, "TCP"): [("10.200.1.2", 8081), ("10.200.1.4", 8081)]}
    headless = {"metadata": {}, "spec": {"clusterIP": "None"}}
    name = "one.manual.default.svc.cluster.local"
    assert resolve(name, lambda key: headless, lambda key: behind) == Answer(True, ["10.200.1.2"])
    assert service_of(slices[0]) == "default/manual"
    assert service_of({"metadata": {"namespace": "default"}}) == ""
    assert from_slices([]) is None
