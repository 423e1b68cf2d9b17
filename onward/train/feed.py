"""What a rank tells somebody who follows it: its state of one step, and from then on the result of every collective.

The one who follows (see `shadow`) stands ready to take this rank's place on another node. It runs the same blocks, with
the results it is told here, so it holds the same state, and a swap moves nothing. What training pays for that is copies
in memory; a thread of our own sends them. Who cannot keep up is dropped: training never waits for it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import zlib
from collections import deque
from typing import Any

import msgspec
import torch

from onward.errors import StateError, WireError
from onward.log import get_logger
from onward.train.local import LocalState
from onward.train.manifest import Manifest
from onward.train.protected import Protected
from onward.train.results import flatten
from onward.train.streams import memory_of
from onward.train.transfer import Channel
from onward.wire import memory
from onward.wire.frames import MAX_HELLO, NONCE_BYTES, proof
from onward.wire.identity import Identity

log = get_logger("onward.train")
MOST_BYTES = 4 << 30  # of what waits to be sent
HELLO_S = 5.0
SAMPLES = 256  # elements of each tensor that a digest looks at


class Wish(msgspec.Struct, frozen=True):
    """The first word of one that wants to follow."""

    rank: int


class State(msgspec.Struct, frozen=True, tag=True):
    """All of `step`, as of the top of the loop. The bytes of the tensors follow."""

    step: int
    manifest: Manifest
    local: bytes  # the slot with this rank's local state
    carry_grads: bool


class Result(msgspec.Struct, frozen=True, tag=True):
    """Of a collective. The bytes of the tensors follow."""

    op: str
    tensors: list[tuple[str, list[int]]]  # (dtype, shape)


class Begun(msgspec.Struct, frozen=True, tag=True):
    """A block begins."""

    step: int
    check: int  # of the local state that it begins with
    small: int  # and of what is small in the shared one
    local: bytes = b""  # that local state, where it is not that of the last commit


class Committed(msgspec.Struct, frozen=True, tag=True):
    """The block of `step` counts."""

    step: int
    newest: int  # the last one that counts by now: so far behind is who reads this


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Nothing more will come. With a step: this rank stands there, for a swap in `generation`."""

    step: int = -1
    generation: int = 0
    past: bool = False  # it has run the code after its last block
    digest: int = 0  # of the shared state of `step`
    small: int = 0
    light: int = 0
    local: list[bytes] = []  # slots with its local state of `step`, and of the next one if that is safe already
    between: list[bytes] = []  # results of the collectives since its last commit: another rank may lack them
    why: str = ""


Item = State | Result | Begun | Committed | Ended


class Entry:
    """The place of a result in the queue, from the launch of its operation on."""

    def __init__(self, feed: Feed, op: str) -> None:
        self._feed = feed
        self.op = op
        self.peer = feed.peer  # whom it is for
        self.tensors: list[torch.Tensor] | None = None

    def fill(self, result: Any) -> None:
        """The operation has ended, and nobody has seen its result yet. From any thread."""
        if not self._feed.open:
            return
        try:
            self.tensors = [] if self.op == "barrier" else [_copy(t) for t in flatten(result)]
        except (RuntimeError, MemoryError) as e:  # never the user's concern
            return self._feed.drop(str(e))
        self._feed.filled(self)

    def fail(self) -> None:
        """There will be no result."""
        self._feed.failed(self)


class Feed:
    """One of each rank. All calls but those of its own threads come from the one that trains, or from a collective."""

    def __init__(self, address: str, identity: Identity, rank: int) -> None:
        self._identity, self._rank = identity, rank
        self._sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        self._sock.bind((address, 0))
        self._sock.listen(4)
        self.address = f"{address}|{self._sock.getsockname()[1]}"
        self.open = False  # somebody follows
        self.refuses = ""  # why nobody can
        self._waiting: socket.socket | None = None  # somebody wants to
        self.peer: socket.socket | None = None
        self._changed = threading.Condition()
        self._queue: deque[Entry | tuple[Item, list[torch.Tensor]]] = deque()
        self._bytes = self._most_bytes = 0
        self._newest = -1
        self._started = False

    def start(self) -> None:
        """Listen. Called when there is something to follow."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._listen, name="onward-feed", daemon=True).start()

    # ------------------------------------------------------------------------------------- who comes

    def _listen(self) -> None:
        while True:
            try:
                peer, _ = self._sock.accept()
            except OSError:
                return
            try:
                peer.settimeout(1.0)
                peer = self._identity.accepted(peer)
                channel = Channel(peer, lambda: False, time.monotonic() + HELLO_S)
                nonce = os.urandom(NONCE_BYTES)
                channel.send(nonce)
                known = channel.receive(MAX_HELLO) == proof(self._identity.token, nonce)
                wish = msgspec.msgpack.decode(channel.receive(MAX_HELLO), type=Wish)
            except (WireError, OSError, msgspec.MsgspecError):
                known, wish = False, Wish(-1)
            if not known or wish.rank != self._rank:
                peer.close()
                continue
            with self._changed:
                self._waiting, old = peer, self._waiting  # whoever came before has been given up by those who sent it
            if old is not None:
                old.close()

    @property
    def wanted(self) -> bool:
        return self._waiting is not None

    def begin(self, step: int, protected: Protected, local: LocalState, learnt: int) -> bool:
        """At the top of the loop, where somebody wants to follow: copy the state aside, and begin to tell."""
        with self._changed:
            peer, self._waiting = self._waiting, None
        if peer is None:
            return False
        self.drop("somebody else follows")
        room = memory.available_bytes()
        why, manifest = self.refuses, Manifest(step, [], b"")
        tensors: list[torch.Tensor] = []
        try:
            manifest, tensors = protected.describe(step, learnt)
        except StateError as e:
            why = str(e)
        if manifest.nbytes > room / 3:
            why = why or f"there is no memory for a copy of {manifest.nbytes >> 20} MB"
        infos = [msgspec.structs.replace(info, address=0) for info in manifest.tensors]
        manifest = msgspec.structs.replace(manifest, tensors=infos)
        with self._changed:
            self.peer, self._queue, self._bytes, self._newest = peer, deque(), 0, step - 1
            self._most_bytes = min(MOST_BYTES, room // 4)
            self.open = not why
            if why:
                self._queue.append((Ended(why=why), []))
            else:
                state = State(step, manifest, local.slot(step).content(), local.carry_grads)
                self._queue.append((state, [_copy(t) for t in tensors]))
        threading.Thread(target=self._send, args=(peer,), name="onward-feed-send", daemon=True).start()
        return self.open

    # ------------------------------------------------------------------------------------- what is told

    def expect(self, op: str) -> Entry | None:
        """An operation is about to be launched: its result has its place from now on."""
        entry = Entry(self, op)
        with self._changed:
            if not self.open or op == "send":
                return None
            self._queue.append(entry)
        return entry

    def filled(self, entry: Entry) -> None:
        with self._changed:
            if entry.peer is not self.peer:
                return
            self._bytes += _size(entry.tensors or [])
            self._changed.notify_all()
            late = self._bytes > self._most_bytes
        if late:
            self.drop("it cannot keep up with the training")

    def failed(self, entry: Entry) -> None:
        with self._changed:
            if entry in self._queue:
                self._queue.remove(entry)
            self._changed.notify_all()

    def begun(self, step: int, check: int, small: int, local: bytes) -> None:
        self._put(Begun(step, check, small, local))

    def committed(self, step: int) -> None:
        self._newest = step
        self._put(Committed(step, step))

    def end(self, item: Ended) -> None:
        """This rank stands at the fence, or is through: whoever follows has all there is."""
        if self.open:
            self._put(item)
            self.open = False

    def drop(self, why: str) -> None:
        """Nobody follows any more."""
        with self._changed:
            peer, self.peer = self.peer, None
            was, self.open = self.open, False
            self._queue, self._bytes = deque(), 0
            self._changed.notify_all()
        if was:
            log.info("rank %d: who follows it is given up: %s", self._rank, why)
        if peer is not None:
            with contextlib.suppress(OSError):
                # Not by the way of TLS, in which the thread that sends may be; it closes it.
                socket.socket.shutdown(peer, socket.SHUT_RDWR)

    def _put(self, item: Item) -> None:
        with self._changed:
            if self.open:
                self._queue.append((item, []))
                self._changed.notify_all()

    # ------------------------------------------------------------------------------------- sending

    def _send(self, peer: socket.socket) -> None:
        try:
            peer.settimeout(1.0)
            channel = Channel(peer, lambda: self.peer is not peer)
            while True:
                item, tensors = self._next(peer)
                channel.send(msgspec.msgpack.encode(item))
                for t in tensors:
                    channel.send_raw(memory_of(t))
                if isinstance(item, Ended):
                    break
        except (WireError, OSError) as e:
            if self.peer is peer:
                self.drop(str(e))
        finally:
            peer.close()

    def _next(self, peer: socket.socket) -> tuple[Item, list[torch.Tensor]]:
        with self._changed:
            while True:
                if self.peer is not peer:
                    raise WireError("given up")
                head = self._queue[0] if self._queue else None
                if isinstance(head, Entry) and head.tensors is not None:
                    self._queue.popleft()
                    self._bytes -= _size(head.tensors)
                    named = [(str(t.dtype).removeprefix("torch."), list(t.shape)) for t in head.tensors]
                    return Result(head.op, named), head.tensors
                if isinstance(head, tuple):
                    item, tensors = self._queue.popleft()  # type: ignore[misc]
                    if isinstance(item, Committed):
                        item = Committed(item.step, self._newest)
                    return item, tensors
                self._changed.wait(1.0)


def check_of(small: Any) -> int:
    """A short name for the small part of local state: random streams, positions, plain values."""
    return zlib.crc32(msgspec.msgpack.encode(small))


def digest_of(protected: Protected) -> int:
    """A short name for the shared state. Some elements of each tensor are enough: a wrong gradient moves them all."""
    return digest_of_tensors(protected.tensors())


def digest_of_tensors(tensors: list[torch.Tensor]) -> int:
    """The same for these."""
    found = 0
    for t in tensors:
        if t.numel() and t.layout is torch.strided:
            every = max(1, t.numel() // SAMPLES)
            some = t.detach().reshape(-1)[::every].cpu().contiguous()
            found = zlib.crc32(memory_of(some), found)
    return found


def _copy(t: torch.Tensor) -> torch.Tensor:
    return t.detach().clone(memory_format=torch.contiguous_format)


def _size(tensors: list[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
