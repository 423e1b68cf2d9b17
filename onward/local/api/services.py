"""Validation of services, and of the addresses and ports they ask for."""

from __future__ import annotations

import ipaddress
from typing import Any

from onward.local.api import names
from onward.local.api.podcontainers import port_name, port_number
from onward.local.api.status import Cause, duplicate, not_allowed, required, unsupported, wrong
from onward.local.api.store import Store

Json = dict[str, Any]
OUTSIDE = ("NodePort", "LoadBalancer")
POLICIES = ("Cluster", "Local")
DAY_S = 86400
WAYS_IN = "pods reach the service at its cluster IP, others with `kubectl port-forward`"


def check(body: Json) -> list[Cause]:
    causes: list[Cause] = []
    spec = body.get("spec") or {}
    kinds = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
    if spec.get("type") not in kinds:
        causes.append(unsupported("spec.type", spec.get("type"), kinds))
    headless = spec.get("clusterIP") == "None"
    if not spec.get("ports") and not headless and spec.get("type") != "ExternalName":
        causes.append(required("spec.ports"))
    if spec.get("type") == "ExternalName":
        causes += _outer_name(spec.get("externalName", ""))
    seen: set[tuple[Any, Any]] = set()
    many = len(spec.get("ports") or ()) > 1
    named: set[str] = set()
    for index, port in enumerate(spec.get("ports") or ()):
        field = f"spec.ports[{index}]"
        if many and not port.get("name"):
            causes.append(required(f"{field}.name"))
        if port.get("name"):
            bad = names.label_problem(port["name"])
            if bad:
                causes.append(wrong(f"{field}.name", port["name"], bad))
            if port["name"] in named:
                causes.append(duplicate(f"{field}.name", port["name"]))
            named.add(port["name"])
        causes += port_number(f"{field}.port", port.get("port", 0))
        target = port.get("targetPort")
        if target is not None:
            check_target = port_number if isinstance(target, int) else port_name
            causes += check_target(f"{field}.targetPort", target)
        if port.get("nodePort") and spec.get("type") not in OUTSIDE:
            why = f"may not be used when `type` is '{spec.get('type')}'"
            causes.append(not_allowed(f"{field}.nodePort", why))
        if port.get("protocol") not in ("TCP", "UDP", "SCTP"):
            causes.append(unsupported(f"{field}.protocol", port.get("protocol"), ("SCTP", "TCP", "UDP")))
        own = (port.get("protocol"), port.get("port"))
        if own in seen:
            causes.append(duplicate(field, {"port": own[1], "protocol": own[0]}))
        seen.add(own)
    if spec.get("sessionAffinity") not in ("ClientIP", "None"):
        causes.append(unsupported("spec.sessionAffinity", spec.get("sessionAffinity"), ("ClientIP", "None")))
    causes += names.check_labels(spec.get("selector") or {}, "spec.selector")
    if spec.get("clusterIP") not in (None, "", "None"):
        causes += names.check_address(spec["clusterIP"], "spec.clusterIPs[0]")
    return causes + _traffic(spec)


def _outer_name(name: str) -> list[Cause]:
    if not name:
        return [required("spec.externalName")]
    bad = names.subdomain_problem(name.removesuffix("."))
    return [wrong("spec.externalName", name, bad)] if bad else []


def _traffic(spec: Json) -> list[Cause]:
    """Who may come in, and to whom they are sent."""
    causes: list[Cause] = []
    timeout = ((spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}).get("timeoutSeconds", 1)
    if spec.get("sessionAffinity") == "ClientIP" and not 0 < timeout <= DAY_S:
        why = f"must be greater than 0 and less than {DAY_S}"
        causes.append(wrong("spec.sessionAffinityConfig.clientIP.timeoutSeconds", timeout, why))
    for index, address in enumerate(spec.get("externalIPs") or ()):
        causes += names.check_address(address, f"spec.externalIPs[{index}]")
    for index, block in enumerate(spec.get("loadBalancerSourceRanges") or ()):
        try:
            ipaddress.ip_network(block, strict=False)
        except ValueError:
            why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
            causes.append(wrong(f"spec.LoadBalancerSourceRanges[{index}]", block, why))
    outer, inner = spec.get("externalTrafficPolicy"), spec.get("internalTrafficPolicy")
    if outer and spec.get("type") not in OUTSIDE and not spec.get("externalIPs"):
        causes.append(wrong("spec.externalTrafficPolicy", outer, "may only be set for externally-accessible services"))
    elif outer and outer not in POLICIES:
        causes.append(unsupported("spec.externalTrafficPolicy", outer, POLICIES))
    if inner and inner not in POLICIES:
        causes.append(unsupported("spec.internalTrafficPolicy", inner, POLICIES))
    for index, family in enumerate(spec.get("ipFamilies") or ()):
        if family != "IPv4" and spec.get("clusterIP") != "None":
            causes.append(wrong(f"spec.ipFamilies[{index}]", family, "not configured on this cluster"))
    return causes


def warnings(body: Json) -> list[str]:
    """What is taken, and has no effect here."""
    spec = body.get("spec") or {}
    found = []
    if spec.get("type") in OUTSIDE:
        found.append(f"spec.type: nothing listens at the nodes' ports here and nobody balances load; {WAYS_IN}")
    if spec.get("externalIPs"):
        found.append(f"spec.externalIPs: nothing listens at other addresses here; {WAYS_IN}")
    return found


def check_free(store: Store, body: Json) -> list[Cause]:
    address = (body.get("spec") or {}).get("clusterIP")
    if address in (None, "", "None"):
        return []
    for _, item in store.all("services"):
        if (item.body.get("spec") or {}).get("clusterIP") == address:
            return [
                wrong(
                    "spec.clusterIPs", [address], f"failed to allocate IP {address}: provided IP is already allocated"
                )
            ]
    return _free_ports(store, body)


def _free_ports(store: Store, body: Json) -> list[Cause]:
    taken = {port.get("nodePort") for _, item in store.all("services") for port in item.body["spec"].get("ports") or ()}
    return [
        wrong(f"spec.ports[{index}].nodePort", port["nodePort"], "provided port is already allocated")
        for index, port in enumerate((body.get("spec") or {}).get("ports") or ())
        if port.get("nodePort") and port["nodePort"] in taken
    ]


def check_update(new: Json, old: Json) -> list[Cause]:
    before, after = (old.get("spec") or {}).get("clusterIP"), (new.get("spec") or {}).get("clusterIP")
    if before and before != after and (new.get("spec") or {}).get("type") != "ExternalName":
        return [wrong("spec.clusterIPs[0]", [after], "may not change once set")]
    return []
