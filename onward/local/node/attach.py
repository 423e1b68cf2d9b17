"""`kubectl attach`: what a container writes from now on, over the same WebSocket channels as `kubectl exec`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from onward.local.node import logs
from onward.local.node.execute import ERROR, PROTOCOLS, STDERR, STDOUT, send, status_of


async def serve(request: web.Request, paths: list[Path], running: Callable[[], bool]) -> web.StreamResponse:
    """`paths`: its log. Until the container has ended, or the client goes."""
    socket = web.WebSocketResponse(protocols=PROTOCOLS)
    await socket.prepare(request)

    async def follow(stream: str, channel: int) -> None:
        async for text in logs.read(paths, logs.Wanted(follow=True, tail=0, stream=stream), running):
            await send(socket, channel, text)

    async def listen() -> None:
        async for _ in socket:
            pass  # there is nobody to hand it to

    wanted = [(name, number) for name, number in (("stdout", STDOUT), ("stderr", STDERR)) if request.query.get(name)]
    streams: asyncio.Future[Any] = asyncio.gather(*(follow(name, number) for name, number in wanted))
    gone: asyncio.Future[Any] = asyncio.ensure_future(listen())
    try:
        await asyncio.wait({streams, gone}, return_when=asyncio.FIRST_COMPLETED)
        if streams.done():
            await send(socket, ERROR, json.dumps(status_of(0)).encode())
    finally:
        streams.cancel()
        gone.cancel()
        await asyncio.gather(streams, gone, return_exceptions=True)
        await socket.close()
    return socket
