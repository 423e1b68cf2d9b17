"""Frames: a 4-byte big-endian length, then MessagePack. Bounded, strict, with a token before anything else."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import socket
import struct
from typing import Any

import msgspec

from onward.errors import HungUp, WireError

MAX_FRAME = 64 * 1024 * 1024
MAX_HELLO = 4096  # until a peer has shown the token
_LENGTH = struct.Struct(">I")
NONCE_BYTES = 16


def pack(encoder: msgspec.msgpack.Encoder, message: Any) -> bytes:
    body = encoder.encode(message)
    if len(body) > MAX_FRAME:
        raise WireError(f"message of {len(body)} bytes is over the limit of {MAX_FRAME}")
    return _LENGTH.pack(len(body)) + body


def decode(decoder: msgspec.msgpack.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise WireError(f"not one of our messages: {e}") from e


def proof(token: bytes, nonce: bytes) -> bytes:
    """What a peer that knows the token answers to `nonce`."""
    return hmac.new(token, b"onward" + nonce, hashlib.sha256).digest()


class FrameReader:
    """Cuts a byte stream into frames. Feed it; it yields whole bodies and refuses oversized ones."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._buffer += data
        out = []
        while len(self._buffer) >= 4:
            (size,) = _LENGTH.unpack_from(self._buffer)
            if size > self.limit:
                raise WireError(f"frame of {size} bytes is over the limit of {self.limit}")
            if len(self._buffer) < 4 + size:
                break
            out.append(bytes(self._buffer[4 : 4 + size]))
            del self._buffer[: 4 + size]
        return out


async def read_frame(reader: asyncio.StreamReader, limit: int = MAX_FRAME) -> bytes:
    """One frame body; WireError when the peer hangs up in the middle or asks for too much."""
    try:
        (size,) = _LENGTH.unpack(await reader.readexactly(4))
        if size > limit:
            raise WireError(f"frame of {size} bytes is over the limit of {limit}")
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError, OSError) as e:
        raise HungUp("the peer closed the connection") from e


def send_at_once(sock: Any) -> None:
    """Have the kernel keep no small message back until the one before it is acknowledged, which can take 40 ms.

    asyncio does so only for sockets that know their protocol; those accepted from a plain listening one do not.
    """
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _send_at_once(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):  # closed again by now
            send_at_once(sock)


async def accept_peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes, wait_s: float) -> None:
    """Server side: send a nonce, take the proof. WireError unless the peer knows the token in time."""
    _send_at_once(writer)
    nonce = os.urandom(NONCE_BYTES)
    writer.write(_LENGTH.pack(len(nonce)) + nonce)
    try:
        answer = await asyncio.wait_for(read_frame(reader, MAX_HELLO), wait_s)
    except asyncio.TimeoutError as e:
        raise WireError("the peer did not show the token in time") from e
    if not hmac.compare_digest(answer, proof(token, nonce)):
        raise WireError("the peer does not know the token of this job")


async def greet_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes, wait_s: float) -> None:
    """Client side of `accept_peer`."""
    _send_at_once(writer)
    try:
        nonce = await asyncio.wait_for(read_frame(reader, MAX_HELLO), wait_s)
    except asyncio.TimeoutError as e:
        raise WireError("the server did not greet in time") from e
    answer = proof(token, nonce)
    writer.write(_LENGTH.pack(len(answer)) + answer)


def greet_server_blocking(sock: socket.socket, token: bytes) -> None:
    """Client side of `accept_peer` on a plain blocking socket."""
    send_at_once(sock)
    reader = FrameReader(MAX_HELLO)
    frames: list[bytes] = []
    while not frames:
        data = sock.recv(4096)
        if not data:
            raise WireError("the peer closed the connection before greeting")
        frames = reader.feed(data)
    answer = proof(token, frames[0])
    sock.sendall(_LENGTH.pack(len(answer)) + answer)
