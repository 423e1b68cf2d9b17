"""Endpoints and EndpointSlices: the addresses behind each Service that selects pods."""

from __future__ import annotations

import asyncio

from onward.kube.client import ApiError, Client
from onward.kube.informer import Informer
from onward.kube.objects import (
    ENDPOINTS,
    ENDPOINTSLICES,
    PODS,
    SERVICES,
    Obj,
    Resource,
    key_of,
    name_of,
    namespace_of,
    split_key,
    uid_of,
)
from onward.kube.queue import WorkQueue, work
from onward.log import get_logger

log = get_logger("local.endpoints")
MANAGER = "endpointslice-controller.k8s.io"


class EndpointsController:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._queue = WorkQueue()
        self._services = Informer(client, SERVICES, on_change=self._on_service)
        self._pods = Informer(client, PODS, on_change=self._on_pod)

    async def run(self) -> None:
        tasks = [asyncio.ensure_future(i.run()) for i in (self._services, self._pods)]
        try:
            await self._services.synced()
            await self._pods.synced()
            tasks.append(asyncio.ensure_future(work(self._queue, self._sync, 4)))
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _on_service(self, old: Obj | None, new: Obj | None) -> None:
        self._queue.add(key_of(new or old or {}))

    def _on_pod(self, old: Obj | None, new: Obj | None) -> None:
        for service in self._services:
            selector = (service.get("spec") or {}).get("selector")
            if selector and any(_selected(selector, service, pod) for pod in (old, new) if pod):
                self._queue.add(key_of(service))

    async def _sync(self, key: str) -> None:
        namespace, name = split_key(key)
        service = self._services.get(key)
        if service is None:
            await self._remove(ENDPOINTS, namespace, name)
            await self._remove_slices(namespace, name, set())
            return
        spec = service.get("spec") or {}
        if not spec.get("selector") or spec.get("type") == "ExternalName":
            return  # its endpoints are somebody else's
        pods = sorted((p for p in self._pods if _selected(spec["selector"], service, p)), key=name_of)
        pods = [p for p in pods if (p.get("status") or {}).get("podIP") and not _over(p)]
        await self._write(ENDPOINTS, namespace, endpoints(service, pods))
        slices = endpoint_slices(service, pods)
        for each in slices:
            await self._write(ENDPOINTSLICES, namespace, each)
        await self._remove_slices(namespace, name, {name_of(each) for each in slices})

    async def _remove_slices(self, namespace: str, service: str, kept: set[str]) -> None:
        """Those of ours that the service does not need any more."""
        labels = f"kubernetes.io/service-name={service},endpointslice.kubernetes.io/managed-by={MANAGER}"
        listed = await self._client.list(ENDPOINTSLICES, namespace, labelSelector=labels)
        for name in [name_of(each) for each in listed["items"]]:
            if name.startswith(f"{service}-onward") and name not in kept:
                await self._remove(ENDPOINTSLICES, namespace, name)

    async def _remove(self, resource: Resource, namespace: str, name: str) -> None:
        try:
            await self._client.delete(resource, name, namespace)
        except ApiError as e:
            if e.code != 404:
                raise

    async def _write(self, resource: Resource, namespace: str, wanted: Obj) -> None:
        try:
            current = await self._client.get(resource, name_of(wanted), namespace)
        except ApiError as e:
            if e.code != 404:
                raise
            try:
                await self._client.create(resource, wanted, namespace)
            except ApiError as again:
                if again.code not in (404, 403):  # the namespace is going away
                    raise
            return
        parts = [k for k in wanted if k not in ("apiVersion", "kind", "metadata")]
        if all((current.get(k) or []) == wanted[k] for k in parts):
            return
        for part in parts:
            current[part] = wanted[part]
        await self._client.update(resource, current, namespace)


def _selected(selector: dict[str, str], service: Obj, pod: Obj) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return namespace_of(pod) == namespace_of(service) and all(labels.get(k) == v for k, v in selector.items())


def _over(pod: Obj) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_ready(pod: Obj) -> bool:
    return _serves(pod) and not pod["metadata"].get("deletionTimestamp")


def _serves(pod: Obj) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def target_port(port: Obj, pod: Obj) -> int | None:
    """The number of a service's target port in one pod; names are looked up there."""
    target = port.get("targetPort") or port["port"]
    if isinstance(target, int) or str(target).isdigit():
        return int(target)
    for container in [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or [])]:
        for candidate in container.get("ports") or []:
            if candidate.get("name") == target:
                return int(candidate["containerPort"])
    return None


def _metadata(service: Obj, name: str, labels: dict[str, str]) -> Obj:
    owner = {
        "apiVersion": "v1",
        "kind": "Service",
        "name": name_of(service),
        "uid": uid_of(service),
        "controller": True,
        "blockOwnerDeletion": True,
    }
    kept = service["metadata"].get("labels") or {}
    return {"name": name, "namespace": namespace_of(service), "labels": {**kept, **labels}, "ownerReferences": [owner]}


def _address(pod: Obj, service: Obj) -> Obj:
    found: Obj = {
        "ip": pod["status"]["podIP"],
        "nodeName": pod["spec"].get("nodeName", ""),
        "targetRef": {"kind": "Pod", "name": name_of(pod), "namespace": namespace_of(pod), "uid": uid_of(pod)},
    }
    if pod["spec"].get("subdomain") == name_of(service) and pod["spec"].get("hostname"):
        found["hostname"] = pod["spec"]["hostname"]
    return found


Ports = tuple[tuple[str, int, str, str], ...]


def _by_ports(service: Obj, pods: list[Obj]) -> list[tuple[Ports, list[Obj]]]:
    """Pods with the numbers that the service's ports have there: named ports may differ from pod to pod."""
    found: dict[Ports, list[Obj]] = {}
    wanted = service["spec"].get("ports") or []
    for pod in pods:
        ports = []
        for port in wanted:
            number = target_port(port, pod)
            if number is not None:
                name, protocol = port.get("name") or "", port.get("protocol") or "TCP"
                ports.append((name, number, protocol, port.get("appProtocol") or ""))
        if ports or not wanted:
            found.setdefault(tuple(ports), []).append(pod)
    return sorted(found.items(), key=lambda each: each[0])


def _headless(service: Obj) -> dict[str, str]:
    return {"service.kubernetes.io/headless": ""} if service["spec"].get("clusterIP") == "None" else {}


def endpoints(service: Obj, pods: list[Obj]) -> Obj:
    """The older form: one subset for each set of port numbers. Pods that are leaving are in none."""
    publish = bool(service["spec"].get("publishNotReadyAddresses"))
    subsets = []
    staying = [pod for pod in pods if publish or not pod["metadata"].get("deletionTimestamp")]
    for ports, behind in _by_ports(service, staying):
        subset: Obj = {}
        for pod in behind:
            part = "addresses" if is_ready(pod) or publish else "notReadyAddresses"
            subset.setdefault(part, []).append(_address(pod, service))
        if ports:
            subset["ports"] = [_port(*each) for each in ports]
        subsets.append(subset)
    labels = {"endpoints.kubernetes.io/managed-by": "endpoint-controller", **_headless(service)}
    metadata = _metadata(service, name_of(service), labels)
    return {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": subsets}


def _port(name: str, number: int, protocol: str, application: str, always_named: bool = False) -> Obj:
    found: Obj = {"port": number, "protocol": protocol}
    if name or always_named:
        found["name"] = name
    if application:
        found["appProtocol"] = application
    return found


def endpoint_slices(service: Obj, pods: list[Obj]) -> list[Obj]:
    """One for each set of port numbers; an empty one where there are no pods."""
    labels = {"kubernetes.io/service-name": name_of(service), "endpointslice.kubernetes.io/managed-by": MANAGER}
    labels |= _headless(service)
    found = []
    for index, (ports, behind) in enumerate(_by_ports(service, pods) or [((), [])]):
        name = f"{name_of(service)}-onward" + (f"-{index}" if index else "")
        found.append(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": _metadata(service, name, labels),
                "addressType": "IPv4",
                "endpoints": [_endpoint(pod, service) for pod in behind],
                "ports": [_port(*each, always_named=True) for each in ports],
            }
        )
    return found


def _endpoint(pod: Obj, service: Obj) -> Obj:
    address, leaving = _address(pod, service), bool(pod["metadata"].get("deletionTimestamp"))
    serving, publish = _serves(pod), bool(service["spec"].get("publishNotReadyAddresses"))
    conditions = {"ready": publish or (serving and not leaving), "serving": serving, "terminating": leaving}
    found = {"addresses": [address["ip"]], "conditions": conditions, "targetRef": address["targetRef"]}
    return found | {key: address[key] for key in ("nodeName", "hostname") if key in address}
