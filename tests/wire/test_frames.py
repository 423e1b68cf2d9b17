"""Frames and the token handshake: whole messages or a WireError, whatever the bytes and whoever sends them."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.errors import WireError
from onward.wire.frames import (
    MAX_FRAME,
    MAX_HELLO,
    FrameReader,
    accept_peer,
    greet_server,
    greet_server_blocking,
    pack,
    proof,
    read_frame,
)
from onward.wire.messages import Hello, encoder

TOKEN = b"the secret of this job, 32 bytes"
LIMIT_S = 60.0


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


# ------------------------------------------------------------------------------------------------ cutting


def test_a_message_split_at_every_byte_is_whole_again() -> None:
    stream = pack(encoder, Hello(process=1, pid=2)) + frame(b"") + frame(b"x" * 300)
    bodies = [encoder.encode(Hello(process=1, pid=2)), b"", b"x" * 300]
    for cut in range(len(stream) + 1):
        reader = FrameReader()
        assert reader.feed(stream[:cut]) + reader.feed(stream[cut:]) == bodies
    one_by_one = FrameReader()
    assert [b for i in range(len(stream)) for b in one_by_one.feed(stream[i : i + 1])] == bodies


@given(st.lists(st.binary(max_size=50), max_size=6), st.lists(st.integers(0, 300), max_size=6))
def test_any_bodies_in_any_pieces(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(frame, bodies))
    reader, out, at = FrameReader(), [], 0
    for cut in [*sorted(cuts), len(stream)]:
        out += reader.feed(stream[at : max(at, cut)])
        at = max(at, cut)
    assert out == bodies


def test_an_oversized_frame_is_refused_by_its_length_alone() -> None:
    for size in (101, 1 << 31, 0xFFFFFFFF):
        with pytest.raises(WireError, match="over the limit of 100"):
            FrameReader(limit=100).feed(struct.pack(">I", size))
    assert FrameReader(limit=100).feed(frame(b"x" * 100)) == [b"x" * 100]


def test_we_do_not_send_what_a_peer_would_refuse() -> None:
    with pytest.raises(WireError, match="over the limit"):
        pack(encoder, b"x" * MAX_FRAME)


# ------------------------------------------------------------------------------------------------ reading


def reading(data: bytes, limit: int = MAX_FRAME) -> bytes:
    async def go() -> bytes:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await asyncio.wait_for(read_frame(reader, limit), LIMIT_S)

    return asyncio.run(go())


def test_a_stream_that_ends_anywhere_inside_a_frame_is_an_error() -> None:
    whole = frame(b"hello")
    assert reading(whole) == b"hello"
    for cut in range(len(whole)):
        with pytest.raises(WireError, match="closed the connection"):
            reading(whole[:cut])


def test_a_length_of_four_gigabytes_is_refused_without_waiting_for_it() -> None:
    with pytest.raises(WireError, match="over the limit"):
        reading(b"\xff\xff\xff\xff")
    with pytest.raises(WireError, match="over the limit"):
        reading(frame(b"x" * (MAX_HELLO + 1)), MAX_HELLO)


# ------------------------------------------------------------------------------------------------ the token

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[Any]]


def meet(client: Peer, wait_s: float = LIMIT_S) -> tuple[WireError | None, Any]:
    """One server that asks for the token and one client: what the server said, and what the client returned."""

    async def go() -> tuple[WireError | None, Any]:
        verdict: asyncio.Future[WireError | None] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await accept_peer(reader, writer, TOKEN, wait_s)
                verdict.set_result(None)
            except WireError as e:
                verdict.set_result(e)
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            answer = await client(reader, writer)
            result = await asyncio.wait_for(verdict, LIMIT_S)
            writer.close()
            return result, answer

    return asyncio.run(go())


def test_one_that_knows_the_token_is_let_in() -> None:
    refused, _ = meet(lambda r, w: greet_server(r, w, TOKEN, LIMIT_S))
    assert refused is None


def test_no_side_keeps_small_messages_back() -> None:
    """Nagle's algorithm has the second of two answers wait until the first is acknowledged, which can take 40 ms."""
    delays: list[int] = []

    def look(writer: asyncio.StreamWriter) -> None:
        delays.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept_peer(reader, writer, TOKEN, LIMIT_S)
        look(writer)
        writer.close()

    async def go() -> None:
        with socket.create_server(("127.0.0.1", 0)) as plain:  # as the agents' and the manager's are
            async with await asyncio.start_server(serve, sock=plain):
                with socket.socket() as near:
                    near.setblocking(False)
                    await asyncio.get_running_loop().sock_connect(near, plain.getsockname())
                    reader, writer = await asyncio.open_connection(sock=near)
                    await greet_server(reader, writer, TOKEN, LIMIT_S)
                    look(writer)
                    await asyncio.wait_for(reader.read(), LIMIT_S)
                    writer.close()

    asyncio.run(go())
    assert delays == [1, 1]


def test_a_wrong_token_is_refused() -> None:
    refused, _ = meet(lambda r, w: greet_server(r, w, b"another secret", LIMIT_S))
    assert refused is not None
    assert "does not know the token" in str(refused)


@pytest.mark.parametrize("answer", [b"", b"x", b"\0" * 32, TOKEN])
def test_a_wrong_answer_is_refused(answer: bytes) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(frame(answer))

    refused, _ = meet(client)
    assert refused is not None


def test_a_proof_overheard_earlier_opens_nothing() -> None:
    async def overhear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        answer = proof(TOKEN, await read_frame(reader))
        writer.write(frame(answer))
        return answer

    refused, overheard = meet(overhear)
    assert refused is None, "it was good once"

    async def replay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(overheard))

    refused, _ = meet(replay)
    assert refused is not None


def test_no_two_greetings_are_alike() -> None:
    async def nonce(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        got = await read_frame(reader)
        writer.close()
        return got

    assert meet(nonce)[1] != meet(nonce)[1]


def test_silence_is_not_waited_for() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pass

    refused, _ = meet(silent, wait_s=0.05)
    assert refused is not None
    assert "in time" in str(refused)


def test_dripping_bytes_is_no_way_round_the_deadline() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(b"x" * 32)[:20])

    refused, _ = meet(drip, wait_s=0.05)
    assert refused is not None
    assert "in time" in str(refused)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\xff" * 64, struct.pack(">I", MAX_HELLO + 1)])
def test_a_stranger_is_refused_by_the_length_of_what_it_says(said: bytes) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)

    refused, _ = meet(client)
    assert refused is not None
    assert "over the limit" in str(refused)


def test_a_server_that_does_not_greet_is_given_up() -> None:
    async def go() -> None:
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        with pytest.raises(WireError, match="did not greet"):
            await greet_server(reader, writer, TOKEN, 0.05)
        writer.close()
        server.close()

    asyncio.run(go())


def test_the_blocking_side_speaks_the_same_words() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(LIMIT_S)
        theirs.settimeout(LIMIT_S)
        nonce = b"n" * 16
        talk = threading.Thread(target=greet_server_blocking, args=(theirs, TOKEN))
        talk.start()
        for byte in frame(nonce):
            ours.send(bytes([byte]))
        answer = b""
        while len(answer) < 36:
            answer += ours.recv(64)
        talk.join(LIMIT_S)
        assert answer == frame(proof(TOKEN, nonce))


def test_the_blocking_side_notices_that_nobody_is_there() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs, pytest.raises(WireError, match="before greeting"):
        greet_server_blocking(theirs, TOKEN)
