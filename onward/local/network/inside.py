"""Sockets inside another network namespace.

A socket belongs to the namespace in which it was made, for ever, whoever uses it. So one thread lives in the switch's
namespace and does nothing but make sockets.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from onward.local.shim import linux

T = TypeVar("T")


class Inside:
    """`namespace_file`: of the namespace; empty: this machine's own."""

    def __init__(self, namespace_file: str) -> None:
        self._thread = ThreadPoolExecutor(1, "inside")
        if namespace_file:
            self._thread = ThreadPoolExecutor(1, "inside", linux.enter, (namespace_file, linux.CLONE_NEWNET))

    async def _do(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def listen(self, address: str, port: int) -> socket.socket:
        return await self._do(lambda: socket.create_server((address, port), backlog=256))

    async def datagram(self, address: str = "", port: int = 0) -> socket.socket:
        def make() -> socket.socket:
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if port:
                sock.bind((address, port))
            sock.setblocking(False)
            return sock

        return await self._do(make)

    async def connect(self, address: str, port: int, timeout_s: float) -> socket.socket:
        sock = await self._do(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        sock.setblocking(False)
        try:
            await asyncio.wait_for(asyncio.get_running_loop().sock_connect(sock, (address, port)), timeout_s)
        except BaseException:
            sock.close()
            raise
        return sock

    def close(self) -> None:
        """No more sockets are made; those that were live on."""
        self._thread.shutdown(wait=False)
