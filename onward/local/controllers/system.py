"""Objects that every cluster has: the services `kubernetes` (the API) and `kube-dns`, at the addresses pods know, and
the definitions of what onward brings along.
"""

from __future__ import annotations

import asyncio

from onward.api.crds import crds
from onward.kube.client import ApiError, Client, Unreachable
from onward.kube.definitions import install
from onward.kube.objects import SERVICES, Obj, name_of
from onward.local.plan import DNS_ADDRESS, Plan
from onward.log import get_logger

log = get_logger("local.system")
AGAIN_S = 10.0


def _service(name: str, namespace: str, address: str, labels: dict[str, str], ports: list[Obj]) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"clusterIP": address, "ports": ports},
    }


def services(plan: Plan) -> list[Obj]:
    """Names are served only where pods have addresses of their own."""
    labels = {"component": "apiserver", "provider": "kubernetes"}
    ports: list[Obj] = [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 443}]
    found = [_service("kubernetes", "default", plan.api_address, labels, ports)]
    if plan.network == "pods":
        labels = {"k8s-app": "kube-dns", "kubernetes.io/name": "CoreDNS"}
        ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
        found.append(_service("kube-dns", "kube-system", DNS_ADDRESS, labels, ports))
    return found


async def _ensure(client: Client, service: Obj) -> None:
    namespace = service["metadata"]["namespace"]
    try:
        await client.get(SERVICES, name_of(service), namespace)
    except ApiError as e:
        if e.code != 404:
            raise
        await client.create(SERVICES, service, namespace)


async def ensure(client: Client, plan: Plan) -> None:
    """For ever: who deletes one gets it back."""
    defined, wanted = crds(), services(plan)
    while True:
        try:
            await install(client, defined)
        except (ApiError, Unreachable) as e:
            log.warning("definitions: %s", e)
        for service in wanted:
            try:
                await _ensure(client, service)
            except (ApiError, Unreachable) as e:
                log.warning("service %s: %s", name_of(service), e)
        await asyncio.sleep(AGAIN_S)
