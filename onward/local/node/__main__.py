"""`python -m onward.local.node --state DIR --name node-1`: the process of one node."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys
from pathlib import Path

from onward.errors import OnwardError
from onward.kube.access import load_access
from onward.kube.client import Client, backoff_s
from onward.local import daemon, processes
from onward.local.node.agent import Agent
from onward.local.node.server import listen
from onward.local.plan import cluster_id, load
from onward.local.shim import linux
from onward.local.wiring import Wiring
from onward.log import get_logger

log = get_logger("local.node")
LOOK_S = 0.2
REVIVE_S = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m onward.local.node", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="the directory of the cluster")
    parser.add_argument("--name", required=True, help="the name of the node")
    asked = parser.parse_args()
    linux.may_mount()  # found out by forking: now, before there are threads
    return daemon.run(f"node {asked.name}", _serve(asked.state.resolve(), asked.name))


async def _serve(state: Path, name: str) -> None:
    plan = load(state)
    node = plan.node(name)
    place = state / "nodes" / name
    place.mkdir(parents=True, exist_ok=True)
    if plan.network == "pods":
        Wiring(cluster_id(state), plan).build_node(node, connected=not (place / "cut").exists())
    sock = _socket(place / "port")
    agent = Agent(state, plan, node, f"http://127.0.0.1:{sock.getsockname()[1]}")
    runner = await listen(agent, state / "node.token", sock)
    (place / "pid").write_text(str(os.getpid()))
    watch = asyncio.ensure_future(_revive(state))
    try:
        await _for_ever(agent, state, place / "cut")
    finally:
        watch.cancel()
        await runner.cleanup()


def _socket(file: Path) -> socket.socket:
    """The same port as before, if it can be had: the API server may know it still."""
    ports = [0]
    with contextlib.suppress(OSError, ValueError):
        ports.insert(0, int(file.read_text()))
    for port in ports:
        with contextlib.suppress(OSError):
            sock = socket.create_server(("127.0.0.1", port))
            file.write_text(str(sock.getsockname()[1]))
            return sock
    raise OnwardError("no port on 127.0.0.1 could be opened")


async def _revive(state: Path) -> None:
    """Supervisor and guard can both be killed; then the nodes are who is left to notice."""
    missed = 0
    while not processes.cluster_ends(state):
        await asyncio.sleep(REVIVE_S)
        missed = 0 if processes.running(state, "supervisor") else missed + 1
        if missed >= 2 and not processes.cluster_ends(state):
            log.warning("the supervisor is gone; starting another")
            processes.start_supervisor(state)
            missed = 0


async def _for_ever(agent: Agent, state: Path, cut: Path) -> None:
    """Work while the API can be reached; a node that is cut off from it (`onward chaos node partition`) lets go."""
    failures = 0
    while True:
        while cut.exists():
            await asyncio.sleep(LOOK_S)
        try:
            async with Client(load_access(state / "kubeconfig"), user_agent="onward-node") as client:
                connected = asyncio.ensure_future(agent.run(client))
                try:
                    while not connected.done() and not cut.exists():
                        await asyncio.wait({connected}, timeout=LOOK_S)
                    if connected.done():
                        connected.result()
                    failures = 0
                finally:
                    connected.cancel()
                    await asyncio.gather(connected, return_exceptions=True)
        except OnwardError as e:
            log.warning("%s; again soon", e)
            failures += 1
            await asyncio.sleep(backoff_s(failures))


if __name__ == "__main__":
    sys.exit(main())
