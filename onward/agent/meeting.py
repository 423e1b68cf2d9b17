"""How the agents of one job find each other: addresses, sockets, and the secret they share."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata

from onward.agent.birth import OTHER_PYTHON
from onward.agent.logs import user_directory
from onward.agent.ports import why_not_bound
from onward.agent.settings import RunSettings
from onward.core.membership import Member
from onward.errors import UsageError
from onward.wire.identity import on_this_machine
from onward.wire.kernel import birth_of, boot_id
from onward.wire.token import machine_token, read_token

PORT = 29500  # torchrun's, where no other is given
NAMES_S = 15.0  # a name may become known a little later; in a pod, until the job must have begun
LOOK_S = 0.5


@dataclass
class Meeting:
    """What an agent brings: who it is, and its sockets."""

    token: bytes
    member: Member
    doors: list[str]  # where to look for a manager first
    manager_socket: socket.socket
    hosts: bool  # the manager begins here
    peer_socket: socket.socket | None  # None: there is nobody to talk to
    pod_socket: socket.socket | None = None  # held for life: no other agent lives in this pod
    outside: bool = False  # some of it leaves this machine


def meet(s: RunSettings, tell: Callable[[str], None]) -> Meeting:
    """Bind what has to be bound. UsageError says what is wrong with the addresses given."""
    name = secrets.token_hex(6)
    mine = _claim(s.pod) if s.several and s.pod else None
    by_the_way = s.max_nodes == 1 and not s.standby and s.pod and mine is None  # the pod's job is run by another
    if not s.several or by_the_way:
        _check_master_port(s)
        sock = socket.create_server(("127.0.0.1", 0), backlog=64)
        address = _bar(sock)
        member = _member(s, name, "127.0.0.1", peer="", manager=address)
        return Meeting(secrets.token_bytes(32), member, [address], sock, True, None)
    named = endpoints(s)
    reached = _reachable(named, s.join_timeout_s if s.pod else min(NAMES_S, s.join_timeout_s), tell)
    local = s.local_addr or _own_address(*reached[0])
    token = _token(s, named[0][1], [*(host for host, _ in reached), local])
    doors = [f"{_resolved(host, port)}|{port}" for host, port in reached]
    first_socket = _host(s, *named[0])
    hosts = first_socket is not None
    sock = first_socket if first_socket is not None else _place_in_line(s, local, doors)
    peers = _bind(local, 0)
    member = _member(s, name, local, peer=_bar(peers), manager=doors[0] if hosts else _bar(sock))
    outside = not all(on_this_machine(host) for host in (local, *(door.rpartition("|")[0] for door in doors)))
    return Meeting(token, replace(member, sole=mine is not None), doors, sock, hosts, peers, mine, outside)


def _claim(pod: str) -> socket.socket | None:
    """A name that is the pod's, in all its containers, and that the kernel gives to one process at a time. None when
    another agent has it. Who finds it free knows that whoever had it is dead.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(f"\0onward-pod-{pod[:64]}")
        return sock
    except OSError:
        sock.close()
        return None


def _check_master_port(s: RunSettings) -> None:
    """A script of torch's own meets at this port; one with the library has no use for it, and may share it."""
    if s.master_port is None or s.launch == "module" or _knows_us(s.script):
        return
    try:
        socket.create_server(("", s.master_port)).close()
    except OSError as e:
        if e.errno == errno.EADDRINUSE:
            why = why_not_bound(e, s.master_addr, s.master_port, "--master-port, or leave that out for any free one")
            raise UsageError(f"rank 0 {why}") from e


def _knows_us(script: str) -> bool:
    """Whether the script may use the library: it is enough that it speaks of it."""
    try:
        with open(script, "rb") as f:
            return b"onward" in f.read()
    except OSError:
        return True  # a directory, or a program on PATH: not for us to judge


def endpoints(s: RunSettings) -> list[tuple[str, int]]:
    """Where the agents meet: the manager that was named, else what torchrun calls the rendezvous or the master.

    Further ones in a list are where else to look: a node that comes when the first is lost finds the others.
    """
    texts = [text.strip() for text in (s.manager or s.rdzv_endpoint).split(",") if text.strip()]
    return [_endpoint(text, s.master_port) for text in texts] or [(s.master_addr, s.master_port or PORT)]


def _endpoint(text: str, default: int | None) -> tuple[str, int]:
    host, _, port = text.rpartition(":") if text.count(":") == 1 or text.startswith("[") else (text, "", "")
    if port and not (port.isdecimal() and 0 < int(port) < 65536):
        raise UsageError(f"{text}: {port!r} is not a port; give HOST:PORT")
    return (host or text).strip("[]"), int(port or default or PORT)


def _reachable(named: list[tuple[str, int]], wait_s: float, tell: Callable[[str], None]) -> list[tuple[str, int]]:
    """Of several, those whose names are known: that of a lost node may be gone with it."""
    deadline = time.monotonic() + wait_s
    told = False
    while not (known := [place for place in named if _is_known(*place)]):
        if time.monotonic() > deadline:
            _resolved(*named[0])  # says what is wrong
        if not told:
            tell(f"{', '.join(host for host, _ in named)}: no such name yet; looking again for {wait_s:.0f} s")
            told = True
        time.sleep(LOOK_S)
    return known


def _is_known(host: str, port: int) -> bool:
    try:
        _resolved(host, port)
    except UsageError:
        return False
    return True


def _place_in_line(s: RunSettings, local: str, doors: list[str]) -> socket.socket:
    """Where a manager of ours would listen, should the first be lost: where others will look, if it is one of us."""
    if not s.manager and not s.standby:
        for door in doors[1:]:
            address, _, port = door.rpartition("|")
            if address == local:
                with contextlib.suppress(UsageError):
                    return _bind(address, int(port))
    if s.manager_port:
        with contextlib.suppress(UsageError):
            return _bind(local, s.manager_port)
    return _bind(local, 0)


def _host(s: RunSettings, host: str, port: int) -> socket.socket | None:
    """The socket of the job's first manager, if it is ours to start; None when it is somebody else's."""
    if s.manager or s.standby or s.node_rank > 0:
        return None
    try:
        return _bind(host, port)
    except UsageError as e:
        if s.node_rank == 0:
            raise UsageError(f"this is node 0, so the job's manager starts here, but: {e.problems[0]}") from e
        return None


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as e:
        raise UsageError(why_not_bound(e, host, port, "--master-port, the same on all nodes")) from e


def _resolved(host: str, port: int) -> str:
    try:
        return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as e:
        raise UsageError(f"{host}: {e.strerror or e}; give the address where the nodes of the job meet") from e


def _own_address(host: str, port: int) -> str:
    """The address of ours that the others can reach: the one that the way to the meeting point begins with."""
    target = _resolved(host, port)
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, port))  # sends nothing
        except OSError as e:
            raise UsageError(f"no way to {host}: {e.strerror or e}; check the address, or give --local-addr") from e
        return str(probe.getsockname()[0])


def _token(s: RunSettings, port: int, addresses: list[str]) -> bytes:
    if s.join_token:
        return s.join_token.encode()
    if s.token_file is not None:
        return read_token(s.token_file)
    if not all(is_loopback(a) for a in addresses):
        raise UsageError(
            "this job can be reached from other machines, so its nodes need a shared secret: make one with "
            "`openssl rand -hex 32 > token`, give it to every node, and add --token-file token"
        )
    return machine_token(user_directory() / f"job-{port}.token")


def is_loopback(host: str) -> bool:
    """True when nobody outside this machine can reach `host`, whatever it resolves to."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError as e:
        raise UsageError(f"{host}: {e.strerror or e}; give an address of this machine") from e
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)


def _member(s: RunSettings, name: str, address: str, peer: str, manager: str) -> Member:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as free:
        port: int = free.getsockname()[1]
    return Member(
        id=name,
        host=socket.gethostname(),
        address=address,
        peer=peer,
        manager=manager,
        master_port=port,
        nproc=s.nproc,
        nodes=s.nodes,
        job=s.job_name,
        wanted=s.node_rank,
        standby=s.standby,
        pod=s.pod,
        boot=boot_id(),
        pid=os.getpid(),
        born=birth_of(os.getpid()),
    )


def software() -> str:
    """What ranks run with here: Python, torch and onward. Read from the packages, since nothing imports torch here."""
    if os.environ.get(OTHER_PYTHON):
        return ""  # that of another Python
    found = [f"Python {sys.version_info.major}.{sys.version_info.minor}"]
    for name, package in (("torch", "torch"), ("onward", "onward-train")):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(package)}")
    return ", ".join(found)


def _bar(sock: socket.socket) -> str:
    name = sock.getsockname()
    return f"{name[0]}|{name[1]}"
