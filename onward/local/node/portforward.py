"""`kubectl port-forward`: connections to ports of a pod, as if from inside it.

Two ways to put them into one WebSocket are spoken. kubectl sends SPDY frames, with a pair of streams for each
connection: one for the data, one for what went wrong. The Python client has two channels for each port, for one
connection each; the first message on each names the port.
"""

from __future__ import annotations

import asyncio
import os
import struct
from abc import ABC, abstractmethod

from aiohttp import WSMsgType, web

from onward.local.network.inside import Inside
from onward.local.node import spdy

TUNNEL = "SPDY/3.1+portforward.k8s.io"
CHANNELS = ("v4.channel.k8s.io", "portforward.k8s.io")
BLOCK = 32 * 1024
CONNECT_S = 10.0
MOST_STREAMS = 2000


class Pod:
    """Where its ports are: in the network of one of its processes."""

    def __init__(self, name: str, address: str, pid: int) -> None:
        self.name = name
        theirs = f"/proc/{pid}/ns/net"
        shared = os.readlink(theirs) == os.readlink("/proc/self/ns/net")
        self._inside = Inside("" if shared else theirs)
        self._addresses = (address, "127.0.0.1") if shared else ("127.0.0.1", address)

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises OSError with a sentence for people."""
        why: Exception = OSError("no address")
        for address in self._addresses:
            try:
                sock = await self._inside.connect(address, port, CONNECT_S)
                return await asyncio.open_connection(sock=sock)
            except (OSError, OverflowError, asyncio.TimeoutError) as e:
                why = e
        text = os.strerror(why.errno) if isinstance(why, OSError) and why.errno else str(why) or "no answer"
        raise OSError(f"error forwarding port {port} to pod {self.name}: {text}")

    def close(self) -> None:
        self._inside.close()


async def serve(request: web.Request, pod: Pod) -> web.StreamResponse:
    websocket = web.WebSocketResponse(protocols=(TUNNEL, *CHANNELS), max_msg_size=1 << 24)
    await websocket.prepare(request)
    try:
        if websocket.ws_protocol == TUNNEL:
            await _Tunnel(websocket, pod).run()
        else:
            ports = [int(word) for words in request.query.getall("ports", []) for word in words.split(",")]
            await _Channels(websocket, pod, ports).run()
    finally:
        pod.close()
        await websocket.close()
    return websocket


class _Session(ABC):
    """What both ways have in common: who sends, and the connections that are open."""

    def __init__(self, websocket: web.WebSocketResponse, pod: Pod) -> None:
        self._websocket, self._pod = websocket, pod
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        try:
            await self._begin()
            async for message in self._websocket:
                if message.type == WSMsgType.BINARY and message.data:
                    await self._take(message.data)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _begin(self) -> None:  # noqa: B027 (one of them has nothing to do)
        pass

    @abstractmethod
    async def _take(self, content: bytes) -> None:
        """What has come from the client."""

    async def _send(self, content: bytes) -> None:
        if not self._websocket.closed:
            try:
                await self._websocket.send_bytes(content)
            except (ConnectionError, RuntimeError):
                pass  # the other side has gone

    def _start(self, connection: _Connection) -> None:
        task = asyncio.ensure_future(connection.run(self._pod))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Connection(ABC):
    """One connection to a port. What comes for it waits until it is there."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._writer: asyncio.Future[asyncio.StreamWriter | None] = asyncio.get_running_loop().create_future()

    async def run(self, pod: Pod) -> None:
        writer = None
        try:
            reader, writer = await pod.connect(self.port)
            self._writer.set_result(writer)
            while content := await reader.read(BLOCK):
                await self.received(content)
            await self.ended("")
        except OSError as e:
            await self.ended(str(e))
        finally:
            if not self._writer.done():
                self._writer.set_result(None)
            if writer is not None:
                writer.close()

    async def write(self, content: bytes, end: bool = False) -> None:
        """To the pod."""
        writer = await self._writer
        if writer is None or writer.is_closing():
            return
        try:
            writer.write(content)
            await writer.drain()
            if end and writer.can_write_eof():
                writer.write_eof()
        except OSError:
            pass  # nobody reads any more

    async def abort(self) -> None:
        writer = await self._writer
        if writer is not None:
            writer.transport.abort()

    @abstractmethod
    async def received(self, content: bytes) -> None:
        """From the pod."""

    @abstractmethod
    async def ended(self, error: str) -> None:
        """The pod has closed it, or (`error`) it could not be opened."""


class _Tunnel(_Session):
    """kubectl's way."""

    def __init__(self, websocket: web.WebSocketResponse, pod: Pod) -> None:
        super().__init__(websocket, pod)
        self._reader, self._writer = spdy.Reader(), spdy.Writer()
        self._errors: dict[str, int] = {}  # request -> its stream for errors
        self._connections: dict[int, _Pair] = {}

    async def _take(self, content: bytes) -> None:
        try:
            frames = self._reader.feed(content)
        except spdy.Malformed:
            await self._websocket.close()
            return
        for frame in frames:
            await self._frame(frame)

    async def _frame(self, frame: spdy.Frame) -> None:
        connection = self._connections.get(frame.stream)
        if frame.kind == spdy.SYN_STREAM:
            await self._stream(frame)
        elif frame.kind == 0 and connection is not None:
            await connection.write(frame.data, bool(frame.flags & spdy.FIN))
        elif frame.kind == spdy.RST_STREAM and connection is not None:
            await connection.abort()
        elif frame.kind == spdy.PING:
            await self._send(spdy.ping(frame.stream))
        elif frame.kind == spdy.GOAWAY:
            await self._websocket.close()

    async def _stream(self, frame: spdy.Frame) -> None:
        kind, number = frame.headers.get("streamtype"), frame.headers.get("requestid", "")
        port = frame.headers.get("port", "")
        good = port.isdecimal() and 0 < int(port) < 65536 and len(self._connections) < MOST_STREAMS
        if kind not in ("error", "data") or not good or (kind == "data" and number not in self._errors):
            await self._send(spdy.reset(frame.stream))
            return
        await self._send(self._writer.reply(frame.stream))
        if kind == "error":
            self._errors[number] = frame.stream
        else:
            pair = _Pair(self, int(port), frame.stream, self._errors.pop(number))
            self._connections[frame.stream] = pair
            self._start(pair)

    async def send(self, stream: int, content: bytes, end: bool = False) -> None:
        await self._send(spdy.data(stream, content, end))

    def over(self, stream: int) -> None:
        self._connections.pop(stream, None)


class _Pair(_Connection):
    def __init__(self, tunnel: _Tunnel, port: int, data: int, error: int) -> None:
        super().__init__(port)
        self._tunnel, self._data, self._error = tunnel, data, error

    async def received(self, content: bytes) -> None:
        await self._tunnel.send(self._data, content)

    async def ended(self, error: str) -> None:
        self._tunnel.over(self._data)
        await self._tunnel.send(self._error, error.encode(), end=True)
        await self._tunnel.send(self._data, b"", end=True)


class _Channels(_Session):
    """The Python client's way."""

    def __init__(self, websocket: web.WebSocketResponse, pod: Pod, ports: list[int]) -> None:
        super().__init__(websocket, pod)
        self._connections = [_Channel(self, port, 2 * index) for index, port in enumerate(ports)]
        self._open = len(ports)

    async def _begin(self) -> None:
        for index, connection in enumerate(self._connections):
            for channel in (2 * index, 2 * index + 1):
                await self.send(channel, struct.pack("<H", connection.port))
            self._start(connection)

    async def _take(self, content: bytes) -> None:
        index, error = divmod(content[0], 2)
        if not error and index < len(self._connections):
            await self._connections[index].write(content[1:])

    async def send(self, channel: int, content: bytes) -> None:
        await self._send(bytes([channel]) + content)

    async def hang_up(self) -> None:
        """A channel has no end of its own: when the last connection is over, so is the WebSocket."""
        self._open -= 1
        if not self._open:
            await self._websocket.close()


class _Channel(_Connection):
    def __init__(self, session: _Channels, port: int, number: int) -> None:
        super().__init__(port)
        self._session, self._number = session, number

    async def received(self, content: bytes) -> None:
        await self._session.send(self._number, content)

    async def ended(self, error: str) -> None:
        if error:
            await self._session.send(self._number + 1, error.encode())
        await self._session.hang_up()
