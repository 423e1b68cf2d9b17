"""The operator as a process: a lease, so that one copy works, and the loop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from dataclasses import dataclass

from onward.api.ascendjob import GROUP
from onward.api.crds import crds
from onward.kube.access import IN_CLUSTER, Access
from onward.kube.client import ApiError, Client
from onward.kube.definitions import install
from onward.kube.lease import LeaderLease
from onward.kube.objects import PODGROUPS
from onward.log import get_logger
from onward.operator.loop import Operator

log = get_logger("operator")

LEASE = "onward-operator"


@dataclass(frozen=True)
class OperatorSettings:
    """What an operator is told."""

    gang: str = "auto"  # on, off, or auto: on where PodGroups are served
    only: str = ""  # the only namespace whose jobs it minds; empty: all
    namespace: str = ""  # of the lease; empty: our own in a cluster, else kube-system
    lease_s: float = 15.0
    token_in_env: bool = False  # nodes cannot mount Secrets
    define: bool = False  # put the definitions of our own kinds there first


async def serve(access: Access, settings: OperatorSettings) -> None:
    """Until it is told to end, or the lease is lost: then whoever started it starts it anew."""
    async with Client(access, user_agent="onward-operator") as client:
        if settings.define:
            await install(client, [crd for crd in crds() if crd["spec"]["group"] == GROUP])
        inside = access.source == str(IN_CLUSTER)
        namespace = settings.namespace or (access.namespace if inside else "kube-system")
        identity = f"{socket.gethostname()}-{os.getpid()}"
        length_s = settings.lease_s
        lease = LeaderLease(client, namespace, LEASE, identity, length_s=length_s, renew_s=length_s / 5)
        gang = await _gang(client, settings.gang)

        async def lead() -> None:
            operator = Operator(
                client,
                gang=gang,
                namespace=settings.only or None,
                leads=lambda: lease.held,
                token_in_env=settings.token_in_env,
            )
            await operator.run()

        task = asyncio.ensure_future(lease.run(lead))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            await lease.release()


async def _gang(client: Client, asked: str) -> bool:
    if asked != "auto":
        return asked == "on"
    try:
        await client.request("GET", PODGROUPS.path(), params={"limit": "1"})
    except ApiError as e:
        if e.code != 404:
            raise
        log.info("PodGroups are not served here: pods are made at once, and placed one by one")
        return False
    return True
