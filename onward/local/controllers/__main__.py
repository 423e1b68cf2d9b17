"""`python -m onward.local.controllers --state DIR`: scheduler, endpoints, and the life of nodes, in one process."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

from onward.errors import OnwardError
from onward.kube.access import load_access
from onward.kube.client import Client
from onward.local.controllers.endpoints import EndpointsController
from onward.local.controllers.nodelife import NodeLifecycle
from onward.local.controllers.system import ensure
from onward.local.plan import load
from onward.scheduler.loop import Scheduler

SCHEDULERS = ("default-scheduler", "volcano", "koord-scheduler")


async def _run(state: Path) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    plan = load(state)
    async with Client(load_access(state / "kubeconfig"), user_agent="onward-controllers") as client:
        await asyncio.gather(
            ensure(client),
            Scheduler(client, SCHEDULERS).run(),
            EndpointsController(client).run(),
            NodeLifecycle(client, plan).run(),
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m onward.local.controllers", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="the directory of the cluster")
    asked = parser.parse_args()
    try:
        asyncio.run(_run(asked.state.resolve()))
    except OnwardError as e:
        print(f"onward controllers[{os.getpid()}]: {e}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
