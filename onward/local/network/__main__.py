"""`python -m onward.local.network --state DIR`: DNS and service addresses of the cluster."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from onward.errors import OnwardError
from onward.kube.access import load_access
from onward.kube.client import Client
from onward.kube.informer import Informer
from onward.kube.objects import ENDPOINTS, SERVICES, Obj, key_of
from onward.local import daemon
from onward.local.network.dns import DnsServer, machine_resolvers
from onward.local.network.forward import Back, Forwarder, Front, fronts
from onward.local.network.inside import Inside
from onward.local.network.names import resolve
from onward.local.plan import API_ADDRESS, DNS_ADDRESS, cluster_id, load
from onward.local.wiring import Wiring

TOGETHER_S = 0.01


async def _run(state: Path) -> None:
    wiring = Wiring(cluster_id(state), load(state))
    inside = Inside(wiring.path(wiring.switch))
    access = load_access(state / "kubeconfig")
    api = ("127.0.0.1", int(access.server.rpartition(":")[2]))  # on this machine's own loopback, not in the switch
    changed = asyncio.Event()

    def on_change(old: Obj | None, new: Obj | None) -> None:
        changed.set()

    async with Client(access, user_agent="onward-network") as client:
        services = Informer(client, SERVICES, on_change=on_change)
        endpoints = Informer(client, ENDPOINTS, on_change=on_change)
        tasks = [asyncio.ensure_future(i.run()) for i in (services, endpoints)]
        await services.synced()
        await endpoints.synced()
        server = DnsServer(lambda name: resolve(name, services.get, endpoints.get), machine_resolvers())
        await server.serve_udp(await inside.datagram(DNS_ADDRESS, 53))
        await server.serve_tcp(await inside.listen(DNS_ADDRESS, 53))
        forwarder = Forwarder(inside)
        while not any(t.done() for t in tasks):
            changed.clear()
            wanted: dict[Front, list[Back]] = {}
            for service in services:
                wanted |= fronts(service, endpoints.get(key_of(service)))
            wanted[Front(API_ADDRESS, 443, "TCP")] = [api]
            await forwarder.update(wanted)
            await changed.wait()
            await asyncio.sleep(TOGETHER_S)
        await asyncio.gather(*tasks)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m onward.local.network", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="the directory of the cluster")
    asked = parser.parse_args()
    return daemon.run("network", _run(asked.state.resolve()), told=(OnwardError, OSError))


if __name__ == "__main__":
    sys.exit(main())
