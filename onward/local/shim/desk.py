"""Where the node agent talks to the shim: a unix socket. It sends orders and gets the state, one a line each.

A connection that asks to `attach` to a container is given to that container, and is no longer ours.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import Any

from onward.local.shim.loop import Loop

WAITING_BYTES = 1 << 20
Order = dict[str, Any]


class Desk:
    def __init__(
        self,
        loop: Loop,
        path: str,
        on_order: Callable[[Order], None],
        on_guest: Callable[[socket.socket, Order], None],
    ) -> None:
        self._loop, self._on_order, self._on_guest = loop, on_order, on_guest
        self._clients: dict[int, tuple[socket.socket, bytearray]] = {}
        self._last = b""
        try:
            os.unlink(path)
        except OSError:
            pass
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.setblocking(False)
        # A path in a socket address is short; the directory may not be.
        os.chdir(os.path.dirname(path))
        self._server.bind(os.path.basename(path))
        os.chmod(path, 0o600)
        self._server.listen(8)
        loop.on_readable(self._server.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            client, _ = self._server.accept()
        except OSError:
            return
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, WAITING_BYTES)
        fd = client.fileno()
        self._clients[fd] = (client, bytearray())
        self._loop.on_readable(fd, lambda: self._read(fd))
        if self._last:
            self._send(fd, self._last)

    def tell(self, line: bytes) -> None:
        self._last = line
        for fd in list(self._clients):
            self._send(fd, line)

    def _send(self, fd: int, line: bytes) -> None:
        """One who does not read is dropped; it can connect again and gets the newest state.

        One who has gone is not dropped here: it may have left an order behind, which is read first.
        """
        client = self._clients[fd][0]
        try:
            if client.send(line) != len(line):
                self._drop(fd)
        except BlockingIOError:
            self._drop(fd)
        except OSError:
            pass

    def _drop(self, fd: int) -> None:
        client, _ = self._clients.pop(fd)
        self._loop.forget(fd)
        client.close()

    def _read(self, fd: int) -> None:
        client, held = self._clients[fd]
        try:
            data = client.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(fd)
            return
        held += data
        while (end := held.find(b"\n")) >= 0:
            line = bytes(held[:end])
            del held[: end + 1]
            try:
                order = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(order, dict) and order.get("op") == "attach":
                del self._clients[fd]
                self._loop.forget(fd)
                self._on_guest(client, order)
                return
            if isinstance(order, dict):
                self._on_order(order)
        if len(held) > WAITING_BYTES:  # whoever that is, it is no order
            self._drop(fd)
