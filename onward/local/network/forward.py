"""Service addresses: a connection to a cluster IP is carried to one of the pods behind it.

A port is open only while somebody is behind it, so that others are refused at once, as on a real cluster.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable
from dataclasses import dataclass

from onward.kube.objects import Obj
from onward.local.network.inside import Inside
from onward.log import get_logger

log = get_logger("local.forward")

CONNECT_S = 5.0
BLOCK = 256 * 1024
IDLE_S = 60.0


@dataclass(frozen=True)
class Front:
    """One port of one service."""

    address: str
    port: int
    protocol: str
    sticky: bool = False


Back = tuple[str, int]


def fronts(service: Obj, endpoints: Obj | None) -> dict[Front, list[Back]]:
    """What should be open for a service, and who is behind it."""
    spec = service.get("spec") or {}
    address = spec.get("clusterIP")
    if not address or address == "None" or ":" in address:
        return {}
    found: dict[Front, list[Back]] = {}
    for port in spec.get("ports") or []:
        protocol = port.get("protocol") or "TCP"
        backs = []
        for subset in (endpoints or {}).get("subsets") or []:
            for target in subset.get("ports") or []:
                if (target.get("name") or "") == (port.get("name") or "") and protocol == (
                    target.get("protocol") or "TCP"
                ):
                    backs += [(str(a["ip"]), int(target["port"])) for a in subset.get("addresses") or []]
        if backs:
            front = Front(str(address), int(port["port"]), protocol, spec.get("sessionAffinity") == "ClientIP")
            found[front] = backs
    return found


class Forwarder:
    """`update` brings the open ports in line with what is wanted."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self._open: dict[Front, Callable[[], None]] = {}
        self._backs: dict[Front, list[Back]] = {}
        self._turn = itertools.count()
        self._lock = asyncio.Lock()

    async def update(self, wanted: dict[Front, list[Back]]) -> None:
        async with self._lock:
            self._backs = wanted
            for front in [f for f in self._open if f not in wanted]:
                self._open.pop(front)()
            for front in [f for f in wanted if f not in self._open]:
                try:
                    if front.protocol == "TCP":
                        self._open[front] = await self._open_tcp(front)
                    elif front.protocol == "UDP":
                        self._open[front] = await self._open_udp(front)
                except OSError as e:
                    log.warning("%s:%s: %s", front.address, front.port, e)

    def _choose(self, front: Front, client: str) -> list[Back]:
        """All of them, the one to try first in front."""
        backs = self._backs.get(front) or []
        if not backs:
            return []
        start = hash(client) if front.sticky else next(self._turn)
        return [backs[(start + i) % len(backs)] for i in range(len(backs))]

    async def _open_tcp(self, front: Front) -> Callable[[], None]:
        sock = await self._inside.listen(front.address, front.port)
        server = await asyncio.start_server(lambda r, w: self._carry(front, r, w), sock=sock)
        return server.close

    async def _carry(self, front: Front, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = str(writer.get_extra_info("peername", ("",))[0])
        for address, port in self._choose(front, client)[:3]:
            try:
                far_reader, far_writer = await self._connect(address, port)
                break
            except (OSError, asyncio.TimeoutError):
                continue
        else:
            writer.transport.abort()
            return
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        for side in (writer, far_writer):
            side.close()

    async def _connect(self, address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if address.startswith("127."):  # the API server: on this machine's own loopback
            return await asyncio.wait_for(asyncio.open_connection(address, port), CONNECT_S)
        sock = await self._inside.connect(address, port, CONNECT_S)
        return await asyncio.open_connection(sock=sock)

    async def _open_udp(self, front: Front) -> Callable[[], None]:
        """Each client gets a socket of its own towards a pod; it is given up after a minute of silence."""
        loop, near = asyncio.get_running_loop(), await self._inside.datagram(front.address, front.port)
        clients: dict[tuple[str, int], tuple[socket.socket, asyncio.TimerHandle]] = {}

        def forget(client: tuple[str, int]) -> None:
            sock, timer = clients.pop(client)
            timer.cancel()
            loop.remove_reader(sock)
            sock.close()

        def back(client: tuple[str, int], sock: socket.socket) -> None:
            try:
                near.sendto(sock.recv(65535), client)
            except OSError:
                pass

        async def begin(client: tuple[str, int], data: bytes) -> None:
            backs = self._choose(front, client[0])
            if client not in clients and backs:
                sock = await self._inside.datagram()
                sock.connect(backs[0])
                loop.add_reader(sock, back, client, sock)
                clients[client] = (sock, loop.call_later(IDLE_S, forget, client))
            if client in clients:
                clients[client][0].send(data)

        def readable() -> None:
            try:
                data, client = near.recvfrom(65535)
            except OSError:
                return
            task = asyncio.ensure_future(begin(client, data))
            task.add_done_callback(lambda t: t.cancelled() or t.exception())

        loop.add_reader(near, readable)

        def close() -> None:
            loop.remove_reader(near)
            near.close()
            for client in list(clients):
                forget(client)

        return close


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(BLOCK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.transport.abort()
