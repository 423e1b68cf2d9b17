"""What agents say to one another: requests to the store that one keeps, and local state kept for another node."""

from __future__ import annotations

from typing import Annotated

import msgspec

from onward.wire.messages import StoreReply, StoreRequest


class PeerHello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """First word of an agent to another: its requests follow on this connection."""

    agent: str


class PeerStore(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A store request of one of the sender's ranks."""

    process: int
    request: StoreRequest


class PeerReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    process: int
    reply: StoreReply


class KeepLog(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Keep this for a rank of the sender's: the result of a collective before its first step."""

    attempt: int
    rank: int
    index: Annotated[int, msgspec.Meta(ge=0, lt=1_000_000)]
    data: bytes


class KeepSlot(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A rank asks the agent of another node to keep its local state. Answered with the step, when it is safe."""

    attempt: int
    rank: int
    generation: int
    index: Annotated[int, msgspec.Meta(ge=0, lt=2)]
    step: int
    data: bytes


class SlotKept(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    step: int


class FetchKept(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An agent that takes over a place asks for what was kept for one of its ranks."""

    attempt: int
    rank: int


class Kept(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All that is kept for a rank: slot -> bytes, and its log."""

    attempt: int
    rank: int
    slots: dict[int, bytes] = {}
    log: list[bytes] = []


FromPeer = PeerHello | PeerStore | KeepLog | KeepSlot | FetchKept
ToPeer = PeerReply | SlotKept | Kept

from_peer = msgspec.msgpack.Decoder(FromPeer)
to_peer = msgspec.msgpack.Decoder(ToPeer)
