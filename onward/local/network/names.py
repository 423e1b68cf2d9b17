"""What names stand for: services, their endpoints, pods by host name. Pure, over the objects at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from onward.kube.objects import Obj
from onward.local.plan import DOMAIN

Get = Callable[[str], Obj | None]  # "namespace/name" -> object


@dataclass(frozen=True)
class Answer:
    """`known` is False for a name of ours that does not exist."""

    known: bool
    addresses: list[str] = field(default_factory=list)
    alias: str = ""
    services: list[tuple[int, str]] = field(default_factory=list)  # SRV: port, host


def ours(name: str) -> bool:
    return name == DOMAIN or name.endswith(f".{DOMAIN}")


def resolve(name: str, service_of: Get, endpoints_of: Get) -> Answer:
    """`name` is in lower case, without the last dot, and `ours`."""
    words = name.removesuffix(DOMAIN).rstrip(".").split(".")
    if len(words) == 3 and words[2] == "pod":
        return _pod(words[0])
    if len(words) < 3 or words[-1] != "svc":
        return Answer(known=name == DOMAIN or words in (["svc"], ["pod"]))
    *front, service_name, namespace = words[:-1]
    key = f"{namespace}/{service_name}"
    service = service_of(key)
    if service is None:
        return Answer(False)
    spec, endpoints = service.get("spec") or {}, endpoints_of(key)
    if len(front) == 2 and front[0].startswith("_") and front[1].startswith("_"):
        return _ports(spec, endpoints, front, f"{service_name}.{namespace}.svc.{DOMAIN}")
    if len(front) == 1:
        found = [a for h, a in _addresses(endpoints) if h == front[0]]
        return Answer(bool(found), found)
    if front:
        return Answer(False)
    if spec.get("type") == "ExternalName":
        return Answer(True, alias=str(spec.get("externalName") or ""))
    if spec.get("clusterIP") and spec["clusterIP"] != "None":
        return Answer(True, [spec["clusterIP"]])
    return Answer(True, [address for _, address in _addresses(endpoints)])


def _pod(dashed: str) -> Answer:
    parts = dashed.split("-")
    if len(parts) == 4 and all(p.isdigit() and int(p) < 256 for p in parts):
        return Answer(True, [".".join(parts)])
    return Answer(False)


def _addresses(endpoints: Obj | None) -> list[tuple[str, str]]:
    """(host name, address) of those that are ready. A pod without a host name goes by its address."""
    found = []
    for subset in (endpoints or {}).get("subsets") or []:
        for entry in subset.get("addresses") or []:
            found.append((str(entry.get("hostname") or entry["ip"].replace(".", "-")), str(entry["ip"])))
    return found


def _ports(spec: Obj, endpoints: Obj | None, front: list[str], service: str) -> Answer:
    name, protocol = front[0][1:], front[1][1:]
    found = []
    if spec.get("clusterIP") and spec["clusterIP"] != "None":
        for port in spec.get("ports") or []:
            if port.get("name") == name and (port.get("protocol") or "TCP").lower() == protocol:
                found.append((int(port["port"]), service))
    else:
        for subset in (endpoints or {}).get("subsets") or []:
            for port in subset.get("ports") or []:
                if port.get("name") == name and (port.get("protocol") or "TCP").lower() == protocol:
                    found += [(int(port["port"]), f"{h}.{service}") for h, _ in _addresses({"subsets": [subset]})]
    return Answer(bool(found), services=found)
