"""Pods and nodes as `core.placement` sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.api.gang import AVOID_NODES, EXCLUDE_NODES, PREVIOUS_NODE
from onward.core.placement import Room, Wish
from onward.core.quantity import QuantityError, amount, pod_requests
from onward.kube.objects import Obj, key_of, name_of, namespace_of


def finished(pod: Obj) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def said(obj: Obj) -> dict[str, str]:
    """Its annotations."""
    return dict(obj.get("metadata", {}).get("annotations") or {})


def _requests(pod: Obj) -> dict[str, int]:
    try:
        return pod_requests(pod["spec"])
    except QuantityError:
        return {}  # refused by the API server; nothing we could add up


def amounts(given: Mapping[str, Any] | None) -> dict[str, int]:
    """Resources as numbers; what cannot be read is left out."""
    found = {}
    for name, value in (given or {}).items():
        try:
            found[name] = amount(name, value)
        except QuantityError:
            continue
    return found


def _ports(pod: Obj) -> frozenset[tuple[str, int]]:
    spec = pod["spec"]
    found = set()
    for container in spec.get("containers") or []:
        for port in container.get("ports") or []:
            number = port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork") else None)
            if number:
                found.add((port.get("protocol") or "TCP", int(number)))
    return frozenset(found)


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def wish(pod: Obj, task: str = "") -> Wish:
    spec, notes = pod["spec"], said(pod)
    return Wish(
        key=key_of(pod),
        namespace=namespace_of(pod),
        labels=pod["metadata"].get("labels") or {},
        requests=_requests(pod),
        selector=spec.get("nodeSelector") or {},
        affinity=spec.get("affinity") or {},
        tolerations=spec.get("tolerations") or [],
        ports=_ports(pod),
        prefer=notes.get(PREVIOUS_NODE, "").strip(),
        avoid=_names(notes.get(AVOID_NODES, "")),
        exclude=_names(notes.get(EXCLUDE_NODES, "")),
        task=task,
    )


def room(node: Obj) -> Room:
    spec, status = node.get("spec") or {}, node.get("status") or {}
    taints = list(spec.get("taints") or [])
    conditions = {c["type"]: c["status"] for c in status.get("conditions") or []}
    if conditions.get("Ready") != "True" and not any("not-ready" in t.get("key", "") for t in taints):
        # The node controller adds the taint a moment later; until then this says the same.
        taints.append({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})
    return Room(
        name=name_of(node),
        labels=node["metadata"].get("labels") or {},
        allocatable=amounts(status.get("allocatable")),
        taints=taints,
        unschedulable=bool(spec.get("unschedulable")),
    )
