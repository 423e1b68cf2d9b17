"""Objects that every cluster has: the services `kubernetes` (the API) and `kube-dns`, at the addresses pods know, and
the definitions of what onward brings along.
"""

from __future__ import annotations

import asyncio

from onward.api.crds import crds
from onward.kube.client import ApiError, Client, Unreachable
from onward.kube.definitions import install
from onward.kube.objects import SERVICES, Obj, name_of
from onward.local.plan import API_ADDRESS, DNS_ADDRESS
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


WANTED = [
    _service(
        "kubernetes",
        "default",
        API_ADDRESS,
        {"component": "apiserver", "provider": "kubernetes"},
        [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 443}],
    ),
    _service(
        "kube-dns",
        "kube-system",
        DNS_ADDRESS,
        {"k8s-app": "kube-dns", "kubernetes.io/name": "CoreDNS"},
        [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}],
    ),
]


async def _ensure(client: Client, service: Obj) -> None:
    namespace = service["metadata"]["namespace"]
    try:
        await client.get(SERVICES, name_of(service), namespace)
    except ApiError as e:
        if e.code != 404:
            raise
        await client.create(SERVICES, service, namespace)


async def ensure(client: Client) -> None:
    """For ever: who deletes one gets it back."""
    defined = crds()
    while True:
        try:
            await install(client, defined)
        except (ApiError, Unreachable) as e:
            log.warning("definitions: %s", e)
        for service in WANTED:
            try:
                await _ensure(client, service)
            except (ApiError, Unreachable) as e:
                log.warning("service %s: %s", name_of(service), e)
        await asyncio.sleep(AGAIN_S)
