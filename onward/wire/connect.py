"""Connections between the processes of a job: TCP, TLS where they leave the machine, and the token."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from asyncio import sslproto
from collections.abc import Awaitable, Callable

from onward.errors import WireError
from onward.wire.frames import greet_server
from onward.wire.identity import NAME, Identity

BACKLOG = 1024  # of a job's agents, which may all come at once
FULL_S = 0.2  # between two tries to accept where there is no descriptor left
AT_ONCE = 32  # handshakes of TLS: of thousands that are begun together none is through before its time is over
# Instead of a buffer of 256 KB for each connection: a manager has thousands.
sslproto.SSLProtocol.max_size = 32 << 10  # type: ignore[attr-defined]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
OnConnection = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Stranger(WireError):
    """Whoever answers has another identity than this job's."""


async def connect(host: str, port: int, identity: Identity, connect_s: float, greeting_s: float) -> Streams:
    """A connection to a server of this job, which has been shown that we belong to it. OSError or WireError if not.

    `greeting_s`: a manager may have to be started first, when somebody knocks.
    """
    context = identity.at(host)
    if context is None:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), connect_s)
    else:
        reader, writer = await _encrypted(host, port, context, connect_s, greeting_s)
    try:
        await greet_server(reader, writer, identity.token, greeting_s)
    except BaseException:
        writer.close()
        raise
    return reader, writer


async def _encrypted(
    host: str, port: int, context: ssl.SSLContext, connect_s: float, greeting_s: float
) -> Streams:
    loop = asyncio.get_running_loop()
    family, _, _, _, address = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        await asyncio.wait_for(loop.sock_connect(sock, address), connect_s)
        opened = asyncio.open_connection(
            sock=sock, ssl=context, server_hostname=NAME, ssl_handshake_timeout=greeting_s
        )
        return await asyncio.wait_for(opened, greeting_s + 1.0)
    except ssl.SSLError as e:
        sock.close()
        raise Stranger(f"whoever answers at {host}:{port} is not of this job: {e}") from e
    except BaseException:
        sock.close()
        raise


class Listener:
    """Takes in peers: `serve(reader, writer)` is called for each, and asks it for the token. `refused(why)`: no TLS."""

    def __init__(
        self,
        sock: socket.socket,
        identity: Identity,
        serve: OnConnection,
        greeting_s: float,
        refused: Callable[[str], None],
    ) -> None:
        self._sock, self._identity, self._serve, self._greeting_s = sock, identity, serve, greeting_s
        self._refused = refused
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(AT_ONCE)
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._accepting = asyncio.ensure_future(self._accept())

    def close(self) -> None:
        """Nobody new is let in; those who are in stay."""
        self._accepting.cancel()
        self._sock.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, _ = await loop.sock_accept(self._sock)
            except OSError:
                await asyncio.sleep(FULL_S)
                continue
            task = loop.create_task(self._admit(peer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _admit(self, peer: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            context = self._identity.at(peer.getsockname()[0], server=True)
            if context is None:
                transport, _ = await loop.connect_accepted_socket(lambda: protocol, peer)
            else:
                await asyncio.wait_for(_has_spoken(peer), self._greeting_s)  # who says nothing has no turn
                async with self._turns:
                    if _has_left(peer):  # others wait: none of their time for one that could not
                        return peer.close()
                    transport, _ = await loop.connect_accepted_socket(
                        lambda: protocol, peer, ssl=context, ssl_handshake_timeout=self._greeting_s
                    )
        except (OSError, asyncio.TimeoutError) as e:
            peer.close()
            return self._refused(f"it does not show that it belongs to this job: {e or type(e).__name__}")
        await self._serve(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


def _has_left(peer: socket.socket) -> bool:
    """It has hung up, whatever it had said before."""
    poll = select.poll()
    poll.register(peer, select.POLLRDHUP)
    return bool(poll.poll(0))


async def _has_spoken(peer: socket.socket) -> None:
    """When there is something to be read from it, or it has gone."""
    loop = asyncio.get_running_loop()
    spoken = asyncio.Event()
    loop.add_reader(peer.fileno(), spoken.set)
    try:
        await spoken.wait()
    finally:
        loop.remove_reader(peer.fileno())
