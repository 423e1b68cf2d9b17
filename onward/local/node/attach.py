"""`kubectl attach`: what a container writes from now on, and what is typed to it, over the same WebSocket channels as
`kubectl exec`. The messages are passed on between the client and the shim, who has the container's standard files.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from aiohttp import WSMsgType, web

from onward.local.node.execute import ERROR, PROTOCOLS, STDERR, send, status_of
from onward.local.shim.streams import HEAD

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
NO_INPUT = "container {} takes no input: its pod does not say `stdin: true`, or its input has ended (`stdinOnce`)\n"


class NotRunning(Exception):
    """The container has ended meanwhile."""


async def begin(connection: Connection, container: str, query: Mapping[str, str]) -> bool:
    """Have the shim give us the container. First it tells its state, as it does everybody. True: it takes input."""
    reader, writer = connection
    asked: dict[str, Any] = {name: query.get(name) in ("true", "1") for name in ("stdin", "stdout", "stderr")}
    writer.write(json.dumps({"op": "attach", "container": container, **asked}).encode() + b"\n")
    while line := await reader.readline():
        said = json.loads(line)
        if said.get("attached"):
            return bool(said["stdin"])
    raise NotRunning


async def serve(request: web.Request, connection: Connection, container: str, takes_input: bool) -> web.StreamResponse:
    """Until the container has ended, the shim lets go, or the client goes."""
    socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=1 << 22)
    await socket.prepare(request)
    if request.query.get("stdin") in ("true", "1") and not takes_input:
        await send(socket, STDERR, NO_INPUT.format(container).encode())
    reader, writer = connection
    shown, heard = asyncio.ensure_future(_show(reader, socket)), asyncio.ensure_future(_hand_on(socket, writer))
    try:
        await asyncio.wait({shown, heard}, return_when=asyncio.FIRST_COMPLETED)
        if shown.done():
            await send(socket, ERROR, json.dumps(status_of(0)).encode())
    finally:
        shown.cancel()
        heard.cancel()
        await asyncio.gather(shown, heard, return_exceptions=True)
        writer.close()
        await socket.close()
    return socket


async def _show(reader: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
    try:
        while True:
            (length,) = HEAD.unpack(await reader.readexactly(HEAD.size))
            message = await reader.readexactly(length)
            await send(socket, message[0], message[1:])
    except (asyncio.IncompleteReadError, OSError):
        pass  # the container has ended


async def _hand_on(socket: web.WebSocketResponse, writer: asyncio.StreamWriter) -> None:
    async for message in socket:
        if message.type == WSMsgType.BINARY and message.data:
            writer.write(HEAD.pack(len(message.data)) + message.data)
            try:
                await writer.drain()
            except OSError:
                return
