"""What a container reads and writes, with people attached: nothing is lost, nobody holds a container back for ever."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from onward.local.shim import streams
from onward.local.shim.loop import Loop
from onward.local.shim.streams import CLOSE, HEAD, STDERR, STDIN, STDOUT, Streams

MUCH = 3 << 20
WRITES = f"import os, sys; sys.stdout.buffer.write(bytes(range(256)) * ({MUCH} // 256)); sys.stderr.write('over')"


class Stage:
    """A container's process, its streams, and a loop that turns until told to stop."""

    def __init__(self, place: Path) -> None:
        self.loop, self._place = Loop(), place
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self, code: str, **spec: Any) -> tuple[Streams, subprocess.Popen[bytes]]:
        made = Streams(self.loop, str(self._place / "logs" / "c.log"), spec)
        stdin, stdout, stderr = made.child
        child = subprocess.Popen([sys.executable, "-c", code], stdin=stdin, stdout=stdout, stderr=stderr)
        self._children.append(child)
        made.started()
        return made, child

    def attach(self, to: Streams, *names: str) -> socket.socket:
        far, near = socket.socketpair()
        near.setblocking(False)
        to.attach(near, dict.fromkeys(names, True))
        far.settimeout(60)
        self.hello = json.loads(_line(far))
        return far

    def turn(self, done: Any, what: str) -> None:
        """Until something is so."""

        def look() -> None:
            if done():
                self.loop.running = False
            else:
                self.loop.after(0.005, look)

        late = self.loop.after(60, lambda: setattr(self.loop, "running", False))
        self.loop.running = True
        look()
        self.loop.run()
        late.cancel()
        assert done(), what

    def end(self) -> None:
        for child in self._children:
            child.kill()
            child.wait()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.end()


def _line(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(1), b"\n"))


def _message(channel: int, data: bytes) -> bytes:
    return HEAD.pack(len(data) + 1) + bytes([channel]) + data


class Reader:
    """Reads to the end, in a thread of its own."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self.over = sock, False
        self.seen = {STDOUT: bytearray(), STDERR: bytearray()}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        held = bytearray()
        while data := self._sock.recv(1 << 16):
            held += data
            while len(held) >= 4 and len(held) >= 4 + HEAD.unpack_from(held)[0]:
                (length,) = HEAD.unpack_from(held)
                self.seen[held[4]] += held[5 : 4 + length]
                del held[: 4 + length]
        self.over = True


def test_one_who_does_not_read_holds_the_container_back_and_misses_nothing(stage: Stage) -> None:
    made, child = stage.start(WRITES)
    guest = stage.attach(made, "stdout", "stderr")
    stage.turn(lambda: made._held_back, "the container waits for its guest")
    assert child.poll() is None
    reader = Reader(guest)
    stage.turn(lambda: child.poll() is not None, "the guest reads, so the container goes on")
    made.end()
    stage.turn(lambda: reader.over, "the guest has all of it")
    expected = hashlib.sha256(bytes(range(256)) * (MUCH // 256)).digest()
    assert hashlib.sha256(reader.seen[STDOUT]).digest() == expected
    assert reader.seen[STDERR] == b"over"


def test_one_who_takes_nothing_for_long_is_left_and_the_container_goes_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "SLOW_S", 0.2)
    made, child = stage.start(WRITES)
    reader, _stuck = Reader(stage.attach(made, "stdout")), stage.attach(made, "stdout")
    stage.turn(lambda: child.poll() is not None, "the container ends")
    made.end()
    stage.turn(lambda: reader.over, "who reads has all of it")
    assert len(reader.seen[STDOUT]) == MUCH


def test_what_is_typed_arrives_whole_and_its_end_with_stdin_once(stage: Stage) -> None:
    echo = "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
    made, child = stage.start(echo, stdin=True, stdin_once=True)
    guest = stage.attach(made, "stdin", "stdout")
    assert stage.hello == {"attached": True, "stdin": True}
    text = random.Random(1).randbytes(MUCH)
    types = threading.Thread(
        target=lambda: guest.sendall(
            b"".join(_message(STDIN, text[i : i + 50_000]) for i in range(0, MUCH, 50_000))
            + _message(CLOSE, bytes([STDIN]))
        )
    )
    types.start()
    reader = Reader(guest)
    stage.turn(lambda: child.poll() is not None, "its input has come to an end")
    types.join(60)
    stage.attach(made, "stdin", "stdout")
    assert stage.hello["stdin"] is False  # once
    made.end()
    stage.turn(lambda: reader.over, "it is over")
    assert reader.seen[STDOUT].decode().strip() == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize("says_so", [True, False], ids=["end-of-input", "hangs-up"])
def test_without_stdin_once_the_next_one_types_on(stage: Stage, says_so: bool) -> None:
    made, child = stage.start("for _ in 'ab': print(input(), flush=True)", stdin=True)
    for word in (b"first", b"second"):
        guest = stage.attach(made, "stdin", "stdout")
        guest.sendall(_message(STDIN, word + b"\n"))
        if says_so:
            guest.sendall(_message(CLOSE, bytes([STDIN])))
            reader = Reader(guest)
            stage.turn(lambda reader=reader: reader.over, "it has seen enough")
        else:
            guest.close()
            stage.turn(lambda: not made._guests, "it has left")
    stage.turn(lambda: child.poll() is not None, "both lines are there")
    assert child.returncode == 0


def test_a_terminal(stage: Stage, tmp_path: Path) -> None:
    code = "import os; os.write(1, b'? '); word = input(); print(word[::-1], *os.get_terminal_size(), os.isatty(2))"
    made, child = stage.start(code, stdin=True, tty=True)
    guest = stage.attach(made, "stdin", "stdout")
    guest.sendall(_message(streams.RESIZE, b'{"Width":101,"Height":42}') + _message(STDIN, b"abc\n"))
    reader = Reader(guest)
    stage.turn(lambda: child.poll() is not None, "it ends")
    made.end()
    stage.turn(lambda: reader.over, "it is over")
    seen = bytes(reader.seen[STDOUT])
    assert b"? " in seen
    assert b"abc" in seen  # as the terminal echoes it
    assert seen.endswith(b"cba 101 42 True\r\n")
    assert "cba 101 42 True" in (tmp_path / "logs" / "c.log").read_text()


def test_rubbish_from_a_guest_ends_its_visit_and_nothing_else(stage: Stage) -> None:
    made, child = stage.start("print(input())", stdin=True, tty=True)
    chance = random.Random(3)
    for _ in range(50):
        guest = stage.attach(made, "stdin", "stdout")
        rubbish = [_message(streams.RESIZE, what) for what in (b"", b"[" * 9000, b'{"Width":1e999,"Height":[]}')]
        rubbish += [_message(chance.randrange(5, 255), b"x"), chance.randbytes(9), b"\xff" * 40]
        guest.sendall(b"".join(rubbish))
        stage.turn(lambda: not made._guests, "it is hung up on")
        guest.close()
    guest = stage.attach(made, "stdin", "stdout")
    guest.sendall(_message(STDIN, b"\x15still there\n"))  # ^U: whatever was typed before
    stage.turn(lambda: child.poll() is not None, "it ends")
    assert child.returncode == 0


def test_all_files_are_given_back(stage: Stage, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for spec in ({}, {"stdin": True}, {"stdin": True, "tty": True}, {"tty": True}):
        made, child = stage.start("print(1)", **spec)
        child.wait(60)
        made.end()
    made = Streams(stage.loop, str(tmp_path / "d.log"), {"stdin": True})
    made.abandon()
    until(lambda: len(os.listdir("/proc/self/fd")) == before, "no file is left open", 10)
