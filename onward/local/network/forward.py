"""Service addresses: a connection to a cluster IP is carried to one of the pods behind it.

A port is open only while somebody is behind it, so that others are refused at once, as on a real cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from onward.kube.objects import Obj
from onward.local.network.datagrams import Back, Datagrams
from onward.local.network.inside import Inside
from onward.log import get_logger

log = get_logger("local.forward")

CONNECT_S = 5.0
BLOCK = 256 * 1024


@dataclass(frozen=True)
class Front:
    """One port of one service."""

    address: str
    port: int
    protocol: str
    sticky: bool = False


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
    """`update` brings the open ports in line with what is wanted.

    `shared`: pods share this machine's network. A pod that listens on all addresses then has the port of its service
    already, and is reached there without us; so a port is opened only after somebody behind it listens.
    """

    def __init__(self, inside: Inside, shared: bool = False) -> None:
        self._inside, self._shared = inside, shared
        self._open: dict[Front, Callable[[], None]] = {}
        self._backs: dict[Front, list[Back]] = {}
        self._turn = itertools.count()
        self._lock = asyncio.Lock()
        self.problems: dict[Front, str] = {}

    async def update(self, wanted: dict[Front, list[Back]]) -> bool:
        """False: something is not open yet; call again soon."""
        async with self._lock:
            self._backs = wanted
            for front in [f for f in self._open if f not in wanted]:
                self._open.pop(front)()
                await self._inside.let_go(front.protocol, front.address, front.port)
            self.problems = {front: text for front, text in self.problems.items() if front in wanted}
            for front in [f for f in wanted if f not in self._open]:
                try:
                    opened = await self._begin(front)
                except OSError as e:
                    opened = self._refused(front, e)
                if opened is not None:
                    self._open[front] = opened
            return all(f in self._open for f in wanted)

    async def _begin(self, front: Front) -> Callable[[], None] | None:
        """How to end it. None: not yet."""
        if front.protocol == "TCP":
            if self._shared and not await self._answers(front):
                return None
            return await self._open_tcp(front)
        if front.protocol == "UDP" and not self._shared:
            return await self._open_udp(front)
        raise OSError(errno.EPROTONOSUPPORT, f"{front.protocol} is not forwarded here")

    def _refused(self, front: Front, why: OSError) -> Callable[[], None] | None:
        if self._shared and why.errno == errno.EADDRINUSE:
            return _nothing  # the pod itself: it listens on all addresses
        text = f"port {front.port} of {front.address} is not open: {why.strerror or why}"
        if why.errno == errno.EACCES:
            text += "; ports below 1024 need root's rights, so give the service a higher one"
        if self.problems.get(front) != text:
            log.warning("%s", text)
        self.problems[front] = text
        return _nothing if why.errno in (errno.EACCES, errno.EPROTONOSUPPORT) else None

    async def _answers(self, front: Front) -> bool:
        for address, port in self._backs[front]:
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                _, writer = await self._connect(address, port)
                writer.close()
                return True
        return False

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
        near = await self._inside.bound(front.address, front.port)
        return Datagrams(self._inside, near, lambda client: self._choose(front, client)).close


def _nothing() -> None:
    """There is nothing to close."""


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(BLOCK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.transport.abort()
