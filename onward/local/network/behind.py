"""Who is behind a service: as its Endpoints say or, where there are none, the EndpointSlices that somebody wrote."""

from __future__ import annotations

from onward.kube.index import Index
from onward.kube.informer import Informer
from onward.kube.objects import Obj, namespace_of

SERVICE = "kubernetes.io/service-name"


class Behind:
    """Over informers that run."""

    def __init__(self, endpoints: Informer, slices: Informer) -> None:
        self._endpoints, self._slices = endpoints, Index(slices, service_of)

    def get(self, service: str) -> Obj | None:
        """In the form of Endpoints. `service`: namespace/name."""
        return self._endpoints.get(service) or from_slices(self._slices[service])


def service_of(each: Obj) -> str:
    name = (each["metadata"].get("labels") or {}).get(SERVICE)
    return f"{namespace_of(each)}/{name}" if name else ""


def from_slices(slices: list[Obj]) -> Obj | None:
    subsets = []
    for each in slices:
        if each.get("addressType") != "IPv4":
            continue
        addresses = []
        for endpoint in each.get("endpoints") or []:
            if (endpoint.get("conditions") or {}).get("ready") is not False:
                host = {"hostname": endpoint["hostname"]} if endpoint.get("hostname") else {}
                addresses += [{"ip": ip, **host} for ip in (endpoint.get("addresses") or [])[:1]]
        ports = [port for port in each.get("ports") or [] if port.get("port")]
        subsets.append({"addresses": addresses, "ports": ports})
    return {"subsets": subsets} if subsets else None
