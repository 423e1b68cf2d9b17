"""`python -m onward.local.network --state DIR`: DNS and service addresses of the cluster."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from pathlib import Path

from onward.errors import OnwardError
from onward.kube.access import load_access
from onward.kube.client import Client
from onward.kube.events import EventRecorder
from onward.kube.informer import Informer
from onward.kube.objects import ENDPOINTS, ENDPOINTSLICES, SERVICES, Obj, key_of
from onward.local import daemon
from onward.local.network.behind import Behind
from onward.local.network.datagrams import Back
from onward.local.network.dns import DnsServer, machine_resolvers
from onward.local.network.forward import Forwarder, Front, fronts
from onward.local.network.inside import Inside
from onward.local.network.names import resolve
from onward.local.plan import DNS_ADDRESS, cluster_id, load
from onward.local.shelf import Hand
from onward.local.wiring import Wiring

TOGETHER_S = 0.01
LOOK_S, AGAIN_S = 5.0, 0.3


async def _run(state: Path) -> None:
    plan = load(state)
    shared = plan.network != "pods"
    wiring = Wiring(cluster_id(state), plan)
    inside = Inside("" if shared else wiring.path(wiring.switch), Hand(state))
    access = load_access(state / "kubeconfig")
    changed = asyncio.Event()

    def on_change(old: Obj | None, new: Obj | None) -> None:
        changed.set()

    async with Client(access, user_agent="onward-network") as client:
        services = Informer(client, SERVICES, on_change=on_change)
        endpoints = Informer(client, ENDPOINTS, on_change=on_change)
        slices = Informer(client, ENDPOINTSLICES, on_change=on_change)
        behind = Behind(endpoints, slices)
        events = EventRecorder(client, "onward-network")
        informers = (services, endpoints, slices)
        tasks = [asyncio.ensure_future(work.run()) for work in (*informers, events)]
        for informer in informers:
            await informer.synced()
        always: dict[Front, list[Back]] = {}
        if not shared:
            server = DnsServer(lambda name: resolve(name, services.get, behind.get), machine_resolvers())
            await server.serve_udp(await inside.bound(DNS_ADDRESS, 53))
            await server.serve_tcp(await inside.listen(DNS_ADDRESS, 53))
            # The API is on this machine's own loopback, not in the switch.
            always[Front(plan.api_address, 443, "TCP")] = [("127.0.0.1", int(access.server.rpartition(":")[2]))]
        forwarder, told = Forwarder(inside, shared), dict[Front, str]()
        while not any(t.done() for t in tasks):
            changed.clear()
            owners: dict[Front, Obj] = {}
            wanted = dict(always)
            for service in services:
                found = fronts(service, behind.get(key_of(service)))
                wanted |= found
                owners |= dict.fromkeys(found, service)
            complete = await forwarder.update(wanted)
            await inside.complete()
            for front, text in forwarder.problems.items():
                if told.get(front) != text and front in owners:
                    events.record(owners[front], SERVICES, "Warning", "NotForwarded", text)
            told = dict(forwarder.problems)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(changed.wait(), LOOK_S if complete else AGAIN_S)
            await asyncio.sleep(TOGETHER_S)
        await asyncio.gather(*tasks)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m onward.local.network", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="the directory of the cluster")
    asked = parser.parse_args()
    daemon.open_many_files()
    return daemon.run("network", _run(asked.state.resolve()), told=(OnwardError, OSError))


if __name__ == "__main__":
    sys.exit(main())
