"""The manager that `onward run` starts: `python -m onward.manager SPEC`."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from pathlib import Path

import msgspec

from onward.core.job import Limits
from onward.core.policy import Policy
from onward.core.published import Rules
from onward.manager.server import ManagerServer
from onward.manager.settings import ManagerSettings
from onward.title import entitle
from onward.wire.identity import Identity

NOT_NEEDED = 75  # the exit code of a manager that has nobody to manage


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What the launcher hands over on the command line. The listening socket comes as a descriptor."""

    fd: int
    parent: int
    world_size: int
    nodes: int
    policies: list[Policy]
    limits: Limits
    hang_floor_s: float
    hang_first_s: float
    node_timeout_s: float
    fail_stop_s: float
    rules: Rules
    seat: str
    job: str
    name: str  # for people
    journal: str


def main() -> None:
    import ctypes
    import signal

    spec = msgspec.json.decode(sys.argv[1], type=Spec)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # end with the launcher
    if os.getppid() != spec.parent:
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they may reach everybody at once; the launcher decides, and needs us
    entitle("manager", spec.name)
    sock = socket.socket(fileno=spec.fd)
    settings = ManagerSettings(
        world_size=spec.world_size,
        nodes=spec.nodes,
        policies=tuple(spec.policies),
        limits=spec.limits,
        hang_floor_s=spec.hang_floor_s,
        hang_first_s=spec.hang_first_s,
        node_timeout_s=spec.node_timeout_s,
        fail_stop_s=spec.fail_stop_s,
        seat=spec.seat,
        job=spec.job,
        rules=spec.rules,
        wall_s=time.time() - time.monotonic(),
    )
    server = ManagerServer(settings, Identity.from_environment(), Path(spec.journal))
    asyncio.run(server.serve(sock, idle_s=30.0 if spec.nodes > 1 else 3600.0))
    sys.exit(NOT_NEEDED if server.phase not in ("Succeeded", "Failed") else 0)


if __name__ == "__main__":
    main()
