"""A copy of this rank's local state on another node, so that it outlives this one.

Written straight to the agent there, and waited for: whoever sees the last collective of a step end must know that the
local state of every rank is safe, also from the loss of a node. It is a few kilobytes.
"""

from __future__ import annotations

import socket
import time

from onward.errors import WireError
from onward.log import get_logger
from onward.train.waits import Waits
from onward.wire.frames import FrameReader, decode, greet_server_blocking, pack
from onward.wire.identity import Identity
from onward.wire.messages import encoder
from onward.wire.peers import KeepSlot, SlotKept, to_peer

log = get_logger("onward.train")
WAIT_S = 2.0


class Partner:
    """The connection to the agent that keeps the copy. Without one, everything here does nothing."""

    def __init__(self, identity: Identity, rank: int, attempt: int, waits: Waits) -> None:
        self._waits = waits
        self._identity = identity
        self._rank = rank
        self._attempt = attempt
        self._generation = 0
        self._address = ""
        self._sock: socket.socket | None = None
        self._reader = FrameReader()

    @property
    def there(self) -> bool:
        return bool(self._address)

    def choose(self, address: str, generation: int) -> None:
        """Who keeps the copy from now on; empty for nobody."""
        self._generation = generation
        if address != self._address or self._sock is None:
            self._close()
            self._address = address

    def keep(self, index: int, step: int, data: bytes) -> None:
        """Returns when the copy is safe, or when there is nobody to keep it."""
        if not self._address:
            return
        since = time.monotonic_ns()
        try:
            sock = self._sock if self._sock is not None else self._connect()
            message = KeepSlot(
                attempt=self._attempt, rank=self._rank, generation=self._generation, index=index, step=step, data=data
            )
            sock.sendall(pack(encoder, message))
            answer = self._answer(sock)
        except (OSError, WireError, ValueError) as e:
            log.warning("rank %d: no copy of its local state elsewhere until the next recovery: %s", self._rank, e)
            self._close()
            self._address = ""
            return
        if not isinstance(answer, SlotKept) or answer.step != step:
            log.warning("rank %d: the agent at %s keeps nothing of this generation", self._rank, self._address)
        self._waits.waited(since, time.monotonic_ns())

    def _connect(self) -> socket.socket:
        host, _, port = self._address.rpartition("|")
        sock = socket.create_connection((host, int(port)), timeout=WAIT_S)
        sock = self._identity.connected(sock, host)
        greet_server_blocking(sock, self._identity.token)
        self._sock, self._reader = sock, FrameReader()
        return sock

    def _answer(self, sock: socket.socket) -> object:
        frames: list[bytes] = []
        while not frames:
            data = sock.recv(65536)
            if not data:
                raise WireError(f"the agent at {self._address} closed the connection")
            frames = self._reader.feed(data)
        answer: object = decode(to_peer, frames[0])
        return answer

    def _close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None
