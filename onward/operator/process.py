"""The operator as a process: a lease, so that one copy works, and the loop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onward.api.ascendjob import GROUP
from onward.api.crds import crds
from onward.kube.access import IN_CLUSTER, Access
from onward.kube.client import Client
from onward.kube.definitions import install
from onward.kube.lease import LeaderLease, identity_of, serve_by_turns
from onward.operator.loop import Operator

LEASE = "onward-operator"
GANG = {"on": True, "off": False, "auto": None, "true": True, "false": False}  # the last two are MindCluster's words


@dataclass(frozen=True)
class OperatorSettings:
    """What an operator is told."""

    gang: str = "auto"  # on, off, or auto: on where PodGroups are served
    only: str = ""  # the only namespace whose jobs it minds; empty: all
    namespace: str = ""  # of the lease; empty: our own in a cluster, else kube-system
    lease_s: float = 15.0
    one_machine: bool = False  # all copies run here: one whose process is gone leads no more
    token_in_env: bool = False  # nodes cannot mount Secrets
    define: bool = False  # put the definitions of our own kinds there first


async def serve(access: Access, settings: OperatorSettings) -> None:
    """Until it is told to end."""
    async with Client(access, user_agent="onward-operator") as client:
        if settings.define:
            await install(client, [crd for crd in crds() if crd["spec"]["group"] == GROUP])
        inside = access.source == str(IN_CLUSTER)
        namespace = settings.namespace or (access.namespace if inside else "kube-system")
        lease = LeaderLease(
            client,
            namespace,
            LEASE,
            length_s=settings.lease_s,
            renew_s=settings.lease_s / 5,
            is_dead=is_dead if settings.one_machine else lambda holder: False,
        )

        async def lead() -> None:
            operator = Operator(
                client,
                gang=GANG[settings.gang],
                namespace=settings.only or None,
                leads=lambda: lease.held,
                token_in_env=settings.token_in_env,
            )
            await operator.run()

        await serve_by_turns(lease, lead, "onward operator")


def is_dead(holder: str) -> bool:
    """Whether the holder of a lease was a process of this machine, and is gone."""
    pid = holder.rpartition("-")[2]
    return holder == identity_of(pid) and pid.isdecimal() and not Path("/proc", pid).exists()
