"""A UDP port of a service: each client gets a socket of its own towards one pod, so that answers find their way back.

Packets say nothing of beginning and end, so a client stays with its pod until it has been silent for a minute, or the
pod is no longer behind the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from onward.local.network.inside import Inside

Back = tuple[str, int]
Client = tuple[str, int]
IDLE_S = 60.0
LOOK_S = 5.0
CLIENTS = 512  # of one port; each is an open file. Who has been silent for longest makes room
HELD = 64  # packets of one client, while its socket is made
BYTES = 65535


@dataclass
class _Link:
    """One client and its pod."""

    back: Back
    sock: socket.socket | None = None
    last: float = field(default_factory=time.monotonic)
    held: list[bytes] = field(default_factory=list)


class Datagrams:
    """`near` is the socket that clients know; `choose` names the pods for a client, the one to take in front."""

    def __init__(self, inside: Inside, near: socket.socket, choose: Callable[[str], list[Back]]) -> None:
        self._inside, self._near, self._choose = inside, near, choose
        self._loop = asyncio.get_running_loop()
        self._links: dict[Client, _Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop.add_reader(near, self._readable)
        self._timer = self._loop.call_later(LOOK_S, self._tidy)

    def close(self) -> None:
        self._timer.cancel()
        self._loop.remove_reader(self._near)
        self._near.close()
        for client in list(self._links):
            self._forget(client)
        for task in self._tasks:
            task.cancel()

    def _readable(self) -> None:
        with contextlib.suppress(OSError):
            data, client = self._near.recvfrom(BYTES)
            self._pass_on(data, client)

    def _pass_on(self, data: bytes, client: Client) -> None:
        backs, link = self._choose(client[0]), self._links.get(client)
        if link is not None and link.back not in backs:
            self._forget(client)
            link = None
        if link is None:
            if not backs:
                return
            link = self._links[client] = _Link(backs[0])
            self._make_room()
            task = asyncio.ensure_future(self._open(client, link))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        link.last = time.monotonic()
        if link.sock is None:
            link.held = [*link.held[1 - HELD :], data]
        else:
            with contextlib.suppress(OSError):  # nobody listens there, or not fast enough: lost, as packets are
                link.sock.send(data)

    async def _open(self, client: Client, link: _Link) -> None:
        try:
            sock = await self._inside.datagram()
        except OSError:
            self._links.pop(client, None)
            return
        if self._links.get(client) is not link:  # given up meanwhile
            sock.close()
            return
        link.sock = sock
        self._loop.add_reader(sock, self._answer, client, link)
        for data in link.held:
            with contextlib.suppress(OSError):
                sock.connect(link.back)
                sock.send(data)
        link.held = []

    def _answer(self, client: Client, link: _Link) -> None:
        link.last = time.monotonic()
        with contextlib.suppress(OSError):
            if link.sock is not None:
                self._near.sendto(link.sock.recv(BYTES), client)

    def _make_room(self) -> None:
        if len(self._links) > CLIENTS:
            self._forget(min(self._links, key=lambda client: self._links[client].last))

    def _tidy(self) -> None:
        now = time.monotonic()
        for client in [c for c, link in self._links.items() if now - link.last > IDLE_S]:
            self._forget(client)
        self._timer = self._loop.call_later(LOOK_S, self._tidy)

    def _forget(self, client: Client) -> None:
        sock = self._links.pop(client).sock
        if sock is not None:
            self._loop.remove_reader(sock)
            sock.close()
