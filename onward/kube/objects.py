"""Plain objects: where a kind is served, and reading the fields that every object has."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, TypeAlias

Obj: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Resource:
    """One kind and where the server keeps it."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
        parts = [f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, sub) if part]
        return "/".join(parts)


PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
SERVICES = Resource("", "v1", "services", "Service")
ENDPOINTS = Resource("", "v1", "endpoints", "Endpoints")
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
EVENTS = Resource("", "v1", "events", "Event")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
ENDPOINTSLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
QUEUES = Resource("scheduling.volcano.sh", "v1beta1", "queues", "Queue", namespaced=False)
PODGROUPS = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")


def name_of(obj: Obj) -> str:
    return str(obj.get("metadata", {}).get("name", ""))


def namespace_of(obj: Obj) -> str:
    return str(obj.get("metadata", {}).get("namespace", ""))


def uid_of(obj: Obj) -> str:
    return str(obj.get("metadata", {}).get("uid", ""))


def version_of(obj: Obj) -> str:
    return str(obj.get("metadata", {}).get("resourceVersion", ""))


def newer(one: Obj, other: Obj | None) -> bool:
    """Whether `one` was written after `other`: the versions of one kind are numbers that grow."""
    a, b = version_of(one), version_of(other or {})
    return a.isdecimal() and b.isdecimal() and int(a) > int(b)


def controller_of(obj: Obj) -> Obj | None:
    """The owner that is responsible for it."""
    owners = obj.get("metadata", {}).get("ownerReferences") or []
    return next((o for o in owners if o.get("controller")), None)


def key_of(obj: Obj) -> str:
    """`namespace/name`, or just the name."""
    namespace = namespace_of(obj)
    return f"{namespace}/{name_of(obj)}" if namespace else name_of(obj)


def split_key(key: str) -> tuple[str, str]:
    namespace, _, name = key.rpartition("/")
    return namespace, name


def reference(obj: Obj, resource: Resource) -> Obj:
    """An object reference, as events and bindings carry it."""
    return {
        "apiVersion": obj.get("apiVersion") or resource.api_version,
        "kind": obj.get("kind") or resource.kind,
        "name": name_of(obj),
        "namespace": namespace_of(obj),
        "uid": uid_of(obj),
        "resourceVersion": version_of(obj),
    }


def stamp(at: float) -> str:
    """RFC 3339 in seconds, as metav1.Time is written."""
    return dt.datetime.fromtimestamp(at, dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_stamp(at: float) -> str:
    """RFC 3339 in microseconds, as metav1.MicroTime is written."""
    return dt.datetime.fromtimestamp(at, dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def read_stamp(text: object) -> float | None:
    """None: it is no time."""
    if not text or not isinstance(text, str):
        return None
    try:
        return dt.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
