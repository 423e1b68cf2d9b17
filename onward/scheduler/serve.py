"""`onward scheduler`: the scheduler as a process of its own, on any cluster. Of several, one works."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from onward.core.turns import PATIENCE_S
from onward.kube.access import Access
from onward.kube.client import Client
from onward.kube.lease import LeaderLease, serve_by_turns
from onward.scheduler.loop import Scheduler

LEASE_NAMESPACE, LEASE_NAME = "kube-system", "onward-scheduler"


@dataclass(frozen=True)
class ServeSettings:
    """What `onward scheduler` was asked for."""

    names: Sequence[str]  # of schedulers: pods that ask for one of these are ours
    patience_s: float = PATIENCE_S  # a gang that waits longer is not passed any more
    lease_namespace: str = LEASE_NAMESPACE
    lease_name: str = LEASE_NAME
    lease_s: float = 15.0


async def serve(access: Access, settings: ServeSettings) -> None:
    """Until SIGTERM or SIGINT."""
    async with Client(access, user_agent="onward-scheduler") as client:
        lease = LeaderLease(
            client,
            settings.lease_namespace,
            settings.lease_name,
            length_s=settings.lease_s,
            renew_s=settings.lease_s / 5,
        )

        async def lead() -> None:
            print(f"onward scheduler: leads, for {', '.join(settings.names)}", flush=True)
            await Scheduler(client, settings.names, patience_s=settings.patience_s).run()

        await serve_by_turns(lease, lead, "onward scheduler")


def run(access: Access, settings: ServeSettings) -> int:
    asyncio.run(serve(access, settings))
    return 0
