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

from onward.local.shelf import Hand
from onward.local.shim import linux
from onward.wire.frames import send_at_once

T = TypeVar("T")


class Inside:
    """`namespace_file`: of the namespace; empty: this machine's own. `hand`: where sockets that are known by their port
    are kept, so that they outlive us.
    """

    def __init__(self, namespace_file: str, hand: Hand | None = None) -> None:
        self._hand = hand
        self._thread = ThreadPoolExecutor(1, "inside")
        if namespace_file:
            self._thread = ThreadPoolExecutor(1, "inside", linux.enter, (namespace_file, linux.CLONE_NEWNET))

    async def _do(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def listen(self, address: str, port: int) -> socket.socket:
        sock = await self._open("TCP", address, port, lambda: socket.create_server((address, port), backlog=256))
        send_at_once(sock)  # and with it those that it accepts
        return sock

    async def bound(self, address: str, port: int) -> socket.socket:
        """A socket for datagrams that others know."""

        def make() -> socket.socket:
            sock = _datagrams()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address, port))
            return sock

        return await self._open("UDP", address, port, make)

    async def datagram(self) -> socket.socket:
        return await self._do(_datagrams)

    async def _open(self, kind: str, address: str, port: int, make: Callable[[], socket.socket]) -> socket.socket:
        hand = self._hand
        return await self._do(lambda: hand.get(f"{kind} {address} {port}", make) if hand is not None else make())

    async def let_go(self, kind: str, address: str, port: int) -> None:
        """That socket is closed for good."""
        hand = self._hand
        if hand is not None:
            await self._do(lambda: hand.let_go(f"{kind} {address} {port}"))

    async def complete(self) -> None:
        """Everything that is wanted is open."""
        if self._hand is not None:
            await self._do(self._hand.complete)

    async def connect(self, address: str, port: int, timeout_s: float) -> socket.socket:
        sock = await self._do(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        sock.setblocking(False)
        try:
            await asyncio.wait_for(asyncio.get_running_loop().sock_connect(sock, (address, port)), timeout_s)
        except BaseException:
            sock.close()
            raise
        send_at_once(sock)
        return sock

    def close(self) -> None:
        """No more sockets are made; those that were live on."""
        self._thread.shutdown(wait=False)


def _datagrams() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    return sock
