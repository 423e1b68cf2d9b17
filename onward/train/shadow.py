"""A stand-in that follows the rank whose place it is to take.

It is given that rank's state of some step while everybody trains (see `feed`). From then on it runs the same blocks by
itself, on the same data and with the same random numbers; what the collectives gave is told to it instead of exchanged.
So after each step it holds, bit for bit, what the other holds, and when all stop for the swap nothing is left to move.
Anything that goes another way than it did there ends that: then the state is moved at the swap, all at once.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from onward.errors import StateError, Unwind, WireError
from onward.train.feed import Begun, Committed, Ended, Item, Result, State, Wish
from onward.train.protected import Protected
from onward.train.results import flatten
from onward.train.streams import memory_of
from onward.train.transfer import Channel, host_twin
from onward.wire.frames import MAX_FRAME, MAX_HELLO, proof
from onward.wire.identity import Identity

CONNECT_S = 5.0
_items: msgspec.msgpack.Decoder[Item] = msgspec.msgpack.Decoder(Item)


class Astray(Unwind):
    """What is told does not fit what this process does. Leaves the user's code, as any unwinding does."""


class Shadow:
    """The stream of one that is followed, read in the order in which this process comes to need it."""

    def __init__(self, address: str, identity: Identity, rank: int, interrupted: Callable[[], bool]) -> None:
        host, _, port = address.rpartition("|")
        opened = socket.create_connection((host, int(port)), timeout=CONNECT_S)
        self._sock = identity.connected(opened, host)
        self._sock.settimeout(0.2)
        self._channel = Channel(self._sock, interrupted)
        self._ahead: Item | None = None
        self.ended: Ended | None = None
        self._taken = self._passed = 0  # collectives between two blocks: run here, and there
        self.inside = False  # in a block
        nonce = self._channel.receive(MAX_HELLO)
        self._channel.send(proof(identity.token, nonce))
        self._channel.send(msgspec.msgpack.encode(Wish(rank)))

    def close(self) -> None:
        self._sock.close()

    def state(self, protected: Protected) -> State:
        """Take over the shared state; the caller puts the local one in its place."""
        item = self._next()
        if not isinstance(item, State):
            raise WireError(item.why if isinstance(item, Ended) else "it did not begin with its state")
        targets = protected.targets(item.manifest)
        host_side = [host_twin(t.detach()) for t in targets]
        for t in host_side:
            self._channel.receive_raw(memory_of(t))
        with torch.no_grad():
            for t, h in zip(targets, host_side, strict=True):
                if t.data_ptr() != h.data_ptr():
                    t.detach().copy_(h)
        protected.accept(item.manifest, targets)
        return item

    # ------------------------------------------------------------------------------------- blocks

    def begin(self, step: int) -> Begun | None:
        """The other's block of `step` has begun; None when it has come to its end instead."""
        while isinstance(self._peek(), Result):
            self._skip()
            self._passed += 1
        if self._taken and self._passed:
            raise Astray(f"fewer collectives were run before step {step} than there")
        self._taken = self._passed = 0
        item = self._next_or_end()
        if item is None:
            return None
        if not isinstance(item, Begun) or item.step != step:
            raise Astray(f"it did not go on at step {step}")
        return item

    def finish(self, step: int) -> Committed | None:
        """The other's block of `step` counts; None when it never will."""
        item = self._next_or_end()
        if item is None:
            return None
        if not isinstance(item, Committed) or item.step != step:
            raise Astray(f"the block of step {step} ended here and not there")
        return item

    def fill(self, op: str, result: Any) -> None:
        """Instead of a collective: put what came out of it there into `result`."""
        item = self._peek()
        if isinstance(item, Ended):
            self.ended = item
            raise Unwind("the other stands at the fence")
        own = [] if op == "barrier" else flatten(result)
        mine = [(str(t.dtype).removeprefix("torch."), list(t.shape)) for t in own]
        if not isinstance(item, Result) or item.op != op or [tuple(t) for t in item.tensors] != mine:
            there = f"{item.op} of {item.tensors}" if isinstance(item, Result) else type(item).__name__
            raise Astray(f"the script runs {op} of {mine} where it had run {there}")
        self._next()
        self._taken += not self.inside
        for t in own:
            twin = host_twin(t.detach())
            self._raw(twin)
            if twin.data_ptr() != t.data_ptr():
                with torch.no_grad():
                    t.detach().copy_(twin)

    # ------------------------------------------------------------------------------------- the stream

    def _peek(self) -> Item:
        if self._ahead is None:
            try:
                self._ahead = _items.decode(self._channel.receive(MAX_FRAME))
            except (WireError, OSError) as e:
                raise Astray(f"no more is told: {e}") from e
            except msgspec.MsgspecError as e:
                raise Astray(f"what is told is not understood: {e}") from e
        return self._ahead

    def _next(self) -> Item:
        item, self._ahead = self._peek(), None
        return item

    def _next_or_end(self) -> Item | None:
        """None when it is told no more; `ended` then says why, and where the other stands."""
        item = self._next()
        if isinstance(item, Ended):
            self.ended = item
            return None
        return item

    def _skip(self) -> None:
        item = self._next()
        assert isinstance(item, Result)
        for dtype, shape in item.tensors:
            kind = getattr(torch, dtype, None)
            if not isinstance(kind, torch.dtype):
                raise StateError(f"unknown tensor type {dtype!r} in what is told")
            self._raw(torch.empty(shape, dtype=kind))

    def _raw(self, t: torch.Tensor) -> None:
        try:
            self._channel.receive_raw(memory_of(t))
        except (WireError, OSError) as e:
            raise Astray(f"no more is told: {e}") from e
