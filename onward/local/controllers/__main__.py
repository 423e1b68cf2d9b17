"""`python -m onward.local.controllers --state DIR`: scheduler, endpoints, budgets, life of nodes, in one process."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from onward.kube.access import load_access
from onward.kube.client import Client
from onward.local import daemon
from onward.local.controllers.budgets import Budgets
from onward.local.controllers.endpoints import EndpointsController
from onward.local.controllers.nodelife import NodeLifecycle
from onward.local.controllers.notyet import NotYet
from onward.local.controllers.system import ensure
from onward.local.plan import load
from onward.scheduler.loop import Scheduler

SCHEDULERS = ("default-scheduler", "volcano", "koord-scheduler")


async def _run(state: Path) -> None:
    plan = load(state)
    async with Client(load_access(state / "kubeconfig"), user_agent="onward-controllers") as client:
        await asyncio.gather(
            ensure(client, plan),
            Scheduler(client, SCHEDULERS).run(),
            EndpointsController(client).run(),
            NodeLifecycle(client, plan).run(),
            Budgets(client).run(),
            NotYet(client).run(),
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m onward.local.controllers", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="the directory of the cluster")
    asked = parser.parse_args()
    return daemon.run("controllers", _run(asked.state.resolve()))


if __name__ == "__main__":
    sys.exit(main())
