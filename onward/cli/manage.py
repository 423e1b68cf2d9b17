"""`onward manager`: the manager of one job as a process of its own, for jobs on several nodes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from onward.agent.logs import user_directory
from onward.agent.meeting import is_loopback
from onward.agent.ports import why_not_bound
from onward.core.job import Limits
from onward.core.policy import Policy
from onward.core.published import Rules
from onward.core.words import counted
from onward.errors import OnwardError, UsageError
from onward.manager.server import ManagerServer
from onward.manager.settings import ManagerSettings
from onward.wire.identity import Identity, kept_in_memory
from onward.wire.token import checked, machine_token, read_token

PORT = 9601
IDLE_S = 3600.0  # with no agent connected for so long, there is nobody left to manage


@dataclass(frozen=True)
class ManageSettings:
    """Everything `onward manager` was told, checked."""

    host: str
    port: int
    nodes: int
    nproc: int
    token_file: Path | None
    join_token: str
    policies: tuple[Policy, ...]
    limits: Limits
    node_timeout_s: float
    fail_stop_s: float
    hang_floor_s: float
    rules: Rules
    journal: Path | None


def parse_listen(text: str) -> tuple[str, int]:
    """HOST, HOST:PORT, :PORT or [IPV6]:PORT. An empty host is this machine alone."""
    host, port = text.strip(), str(PORT)
    if host.startswith("["):
        host, _, rest = host[1:].partition("]")
        port = rest.removeprefix(":") or port
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--listen {text}: {port!r} is not a port; give HOST:PORT, such as 0.0.0.0:{PORT}")
    return host or "127.0.0.1", int(port)


def manage(s: ManageSettings) -> int:
    """Serve the job to its end. 0 when it succeeded, 1 when it failed."""
    loopback = is_loopback(s.host)
    token = _token(s)
    if not token and not loopback:
        raise UsageError(
            f"--listen {s.host} can be reached from other machines, so it needs a shared secret: "
            "make one with `openssl rand -hex 32 > token`, give it to every node, and add --token-file token here"
        )
    sock = _bind(s.host, s.port)
    port = sock.getsockname()[1]
    if not token:
        path = user_directory() / f"job-{port}.token"
        token = machine_token(path)
        print(f"onward manager: no --token-file given; the one of this machine is {path}", file=sys.stderr, flush=True)
    settings = ManagerSettings(
        world_size=s.nodes * s.nproc,
        nodes=s.nodes,
        policies=s.policies,
        limits=s.limits,
        hang_floor_s=s.hang_floor_s,
        node_timeout_s=s.node_timeout_s,
        fail_stop_s=s.fail_stop_s,
        seat=f"manager-{port}",
        rules=s.rules,
        wall_s=time.time() - time.monotonic(),
    )
    identity = Identity(token) if loopback else kept_in_memory(token)
    server = ManagerServer(settings, identity, s.journal)
    world = f"{counted(s.nodes, 'node')} of {counted(s.nproc, 'rank')}"
    return asyncio.run(_serve(server, sock, f"listening on {s.host}:{port} for {world}"))


def _token(s: ManageSettings) -> bytes:
    """As for `onward run`: the secret itself comes before a file with it. Empty when there is none."""
    if s.join_token.strip():
        return checked(s.join_token.encode(), "--join-token")
    return read_token(s.token_file) if s.token_file is not None else b""


async def _serve(server: ManagerServer, sock: socket.socket, ready: str) -> int:
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    stopped: list[int] = []

    def stop(number: int) -> None:
        stopped.append(number)
        done.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    print(f"onward manager: {ready}", file=sys.stderr, flush=True)  # from here on it can be told to end
    serving = loop.create_task(server.serve(sock, idle_s=IDLE_S))
    serving.add_done_callback(lambda _: done.set())
    while not done.is_set():
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(done.wait(), 0.5)
        if server.phase in ("Succeeded", "Failed") and not server.connected:
            break
    if serving.done() and serving.exception() is not None:
        raise OnwardError(f"internal error in the manager: {serving.exception()!r}") from serving.exception()
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    how = f"ended, job {server.phase or 'never began'}"
    if server.stepped_down:
        how = "stepped down: no majority of the nodes follows it any more; where one follows another, the job goes on"
    print(f"onward manager: {how}", file=sys.stderr, flush=True)
    if stopped:
        return 128 + stopped[0]
    return 0 if server.phase == "Succeeded" else 1


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as e:
        what = why_not_bound(e, host, port, "--listen HOST:PORT (port 0: any free one)")
        raise UsageError(f"--listen {host}:{port}: {what}") from e
