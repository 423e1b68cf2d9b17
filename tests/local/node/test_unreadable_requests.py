"""Anybody on the machine reaches a node's port: what cannot be read, or is not allowed, leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web

from onward.local.node.server import NodeServer
from onward.local.unreadable import server_log

UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
WORDS = [
    b"GET /containerLogs/default/p/c HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer right\r\n\r\n",
    b"GET /exec/a/b/c HTTP/1.1\r\nHost: x\r\n" + UPGRADE + b"Authorization: Bearer \xd8\r\n\r\n",
    b"GET /exec/\xd8\xff/b/c HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer right\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 2000 + b"\r\n",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nffff",
    b"\x16\x03\x01\x02\x00\x01\x00",
]


class Told(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def told() -> Iterator[list[str]]:
    handler = Told()
    server_log("local.node").addHandler(handler)
    yield handler.lines
    server_log("local.node").removeHandler(handler)


def test_rubbish_at_the_port_of_a_node(tmp_path: Path, told: list[str]) -> None:
    (tmp_path / "token").write_text("right\n")
    chance = random.Random(6)

    async def send(port: int, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(data)
            with contextlib.suppress(asyncio.TimeoutError):  # it waits for more
                return await asyncio.wait_for(reader.read(100), 0.05)
            writer.write_eof()
            return await asyncio.wait_for(reader.read(), 60)
        finally:
            writer.close()

    async def go() -> None:
        node = NodeServer(SimpleNamespace(locals={}), tmp_path / "token")  # type: ignore[arg-type]
        runner = web.AppRunner(node.application(), access_log=None, logger=server_log("local.node"))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        codes = set()
        for _ in range(300):
            data = bytearray(chance.choice(WORDS))
            for _ in range(chance.randrange(4)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            answer = await send(port, bytes(data))
            codes.add(answer[9:12])
            assert answer[9:12] not in (b"500", b"200"), (bytes(data), answer)
        assert codes >= {b"400", b"401", b"404"}
        await runner.cleanup()

    asyncio.run(go())
    assert not told


def test_what_is_wrong_with_us_is_told(told: list[str]) -> None:
    try:
        raise RuntimeError("a bug")
    except RuntimeError:
        server_log("local.node").exception("failed")
    assert ["a bug" in line for line in told] == [True]
