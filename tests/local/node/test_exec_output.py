"""`kubectl exec`: all that a command wrote arrives, also where it is read slowly and the command has ended long ago."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from onward.local.node import execute


class SlowReader:
    """In the place of the WebSocket: each message takes its time; nothing is ever sent to us."""

    closed = False

    def __init__(self) -> None:
        self.got = bytearray()

    async def send_bytes(self, message: bytes) -> None:
        await asyncio.sleep(0.05)
        self.got += message[1:]

    def __aiter__(self) -> SlowReader:
        return self

    async def __anext__(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("tty", [False, True], ids=["pipes", "terminal"])
def test_a_slow_reader_gets_everything(tty: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "HELD_OPEN_S", 0.02)  # shorter than one message takes
    reader = SlowReader()
    session = execute._Session(reader, tty, stdin=False, wanted={1})  # type: ignore[arg-type]
    much = 3_000 if tty else 60_000
    code = asyncio.run(session.run([sys.executable, "-c", f"import os; os.write(1, b'x' * {much}); os.write(2, b'!')"]))
    session.end()
    assert code == 0
    assert reader.got.count(b"x") == much
    assert reader.got.count(b"!") == tty  # a terminal has one stream; else nobody asked for that one




def test_who_holds_the_output_open_and_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "HELD_OPEN_S", 0.05)
    code = "import os; child = os.fork(); print(child) if child else os.execvp('sleep', ['sleep', '99'])"

    async def run() -> bytes:
        reader = SlowReader()
        session = execute._Session(reader, tty=False, stdin=True, wanted={1})  # type: ignore[arg-type]
        try:
            await asyncio.wait_for(session.run([sys.executable, "-c", code]), 60)
        finally:
            session.end()
        return bytes(reader.got)

    said = asyncio.run(run())
    os.kill(int(said), signal.SIGKILL)
