"""Pods and nodes as `core.placement` sees them."""

from __future__ import annotations

from onward.core.placement import Resident, Room, Wish
from onward.core.quantity import QuantityError, amount, pod_requests
from onward.kube.objects import Obj, key_of, name_of, namespace_of


def finished(pod: Obj) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def requests_of(pod: Obj) -> dict[str, int]:
    try:
        return pod_requests(pod["spec"])
    except QuantityError:
        return {}  # refused by the API server; nothing we could add up


def _ports(pod: Obj) -> frozenset[tuple[str, int]]:
    spec = pod["spec"]
    found = set()
    for container in spec.get("containers") or []:
        for port in container.get("ports") or []:
            number = port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork") else None)
            if number:
                found.add((port.get("protocol") or "TCP", int(number)))
    return frozenset(found)


def wish(pod: Obj) -> Wish:
    spec = pod["spec"]
    return Wish(
        key=key_of(pod),
        namespace=namespace_of(pod),
        labels=pod["metadata"].get("labels") or {},
        requests=requests_of(pod),
        selector=spec.get("nodeSelector") or {},
        affinity=spec.get("affinity") or {},
        tolerations=spec.get("tolerations") or [],
        ports=_ports(pod),
    )


def room(node: Obj) -> Room:
    spec, status = node.get("spec") or {}, node.get("status") or {}
    taints = list(spec.get("taints") or [])
    conditions = {c["type"]: c["status"] for c in status.get("conditions") or []}
    if conditions.get("Ready") != "True" and not any("not-ready" in t.get("key", "") for t in taints):
        # The node controller adds the taint a moment later; until then this says the same.
        taints.append({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})
    allocatable = {}
    for name, value in (status.get("allocatable") or {}).items():
        try:
            allocatable[name] = amount(name, value)
        except QuantityError:
            continue
    return Room(
        name=name_of(node),
        labels=node["metadata"].get("labels") or {},
        allocatable=allocatable,
        taints=taints,
        unschedulable=bool(spec.get("unschedulable")),
    )


def put(rooms: dict[str, Room], pod: Obj, node: str) -> None:
    """A pod that is, or is about to be, on a node."""
    there = rooms.get(node)
    if there is None:
        return
    for name, value in requests_of(pod).items():
        there.used[name] = there.used.get(name, 0) + value
    labels = pod["metadata"].get("labels") or {}
    there.residents.append(Resident(namespace_of(pod), labels, pod["spec"].get("affinity") or {}, _ports(pod)))
