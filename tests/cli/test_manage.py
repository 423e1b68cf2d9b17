"""`onward manager`: who may reach it, and how it starts and ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import start
from kernel import free_port
from played import facts_of
from waiting import until

from onward.agent.meeting import is_loopback
from onward.cli.main import main
from onward.cli.manage import parse_listen
from onward.core.membership import Member
from onward.errors import UsageError, WireError
from onward.wire.frames import greet_server_blocking, pack
from onward.wire.messages import encoder
from onward.wire.token import read_token


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1", ("127.0.0.1", 9601)),
        ("127.0.0.1:7000", ("127.0.0.1", 7000)),
        (":7000", ("127.0.0.1", 7000)),
        ("node-3:9", ("node-3", 9)),
        ("[::1]:7000", ("::1", 7000)),
        ("[::]", ("::", 9601)),
        ("::1", ("::1", 9601)),
    ],
)
def test_addresses(text: str, found: tuple[str, int]) -> None:
    assert parse_listen(text) == found


@pytest.mark.parametrize("text", ["host:port", "host:70000", "host:-1"])
def test_what_is_not_a_port_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a port"):
        parse_listen(text)


@pytest.mark.parametrize(
    ("host", "is_it"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False)]
)
def test_loopback(host: str, is_it: bool) -> None:
    assert is_loopback(host) is is_it


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1"])
def test_beyond_this_machine_a_token_is_demanded(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manager", "--listen", f"{host}:0"]) == 2
    text = capsys.readouterr().err
    assert "needs a shared secret" in text
    assert "--token-file" in text


def test_a_short_or_missing_token_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "short").write_text("secret\n")
    assert main(["manager", "--listen", "0.0.0.0:0", "--token-file", str(tmp_path / "short")]) == 2
    assert "too short for a secret" in capsys.readouterr().err
    assert main(["manager", "--listen", "0.0.0.0:0", "--token-file", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err
    assert main(["manager", "--listen", "0.0.0.0:0", "--join-token", "secret"]) == 2
    assert "--join-token: 6 bytes are too short for a secret" in capsys.readouterr().err


def test_a_port_that_is_taken_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["manager", "--listen", f"127.0.0.1:{taken.getsockname()[1]}"]) == 2
    said = capsys.readouterr().err
    assert f"the port is in use by pid {os.getpid()} (" in said
    assert "choose another one with --listen" in said


def test_a_misspelt_strategy_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manager", "--recover-strategy", "retri"]) == 2
    assert "did you mean 'retry'" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--join-token", "a secret of the job's"], []])
def test_the_secret_itself_will_do(words: list[str], tmp_path: Path) -> None:
    """On the command line, or where a pod has it."""
    variables = {} if words else {"ONWARD_JOIN_TOKEN": "a secret of the job's"}
    port = free_port()
    p = start("manager", "--listen", f"127.0.0.1:{port}", *words, cwd=tmp_path, **variables)
    try:
        until(lambda: "listening" in (tmp_path / "err.txt").read_text(), "it listens")
        agent(port, b"a secret of the job's", 0).close()
    finally:
        p.kill()
        p.wait()
    assert "no --token-file given" not in (tmp_path / "err.txt").read_text()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int, Path]]:
    """A real one, for two nodes, with a token."""
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    port = free_port()
    words = ["--listen", f"127.0.0.1:{port}", "--nodes", "2", "--nproc-per-node", "1", "--token-file", str(token)]
    p = start("manager", *words, cwd=tmp_path)
    until(lambda: "listening" in (tmp_path / "err.txt").read_text(), "the manager listens")
    yield p, port, token
    p.kill()
    p.wait()


def agent(port: int, token: bytes, node: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=10)
    greet_server_blocking(sock, token)
    tell(sock, node, 1)
    return sock


def answered(sock: socket.socket, node: int, version: int) -> bool:
    """Tell once more, as agents do all the time, and see whether there are orders."""
    tell(sock, node, version)
    try:
        return bool(sock.recv(4))
    except TimeoutError:
        return False


def tell(sock: socket.socket, node: int, version: int) -> None:
    me = Member(id=f"agent{node}", wanted=node)
    sock.sendall(pack(encoder, facts_of(me, version)))


def test_agents_with_the_token_are_served_once_all_are_there(manager: tuple[subprocess.Popen[str], int, Path]) -> None:
    p, port, token = manager
    first = agent(port, read_token(token), 0)
    second = agent(port, read_token(token), 1)
    for node, sock in enumerate((first, second)):
        sock.settimeout(0.2)
        assert any(answered(sock, node, version) for version in range(2, 50))
    first.close()
    second.close()
    assert p.poll() is None


def test_an_agent_without_it_is_cut_off(manager: tuple[subprocess.Popen[str], int, Path]) -> None:
    p, port, _ = manager
    try:
        sock = agent(port, b"some other secret of enough bytes", 0)
        assert sock.recv(4) == b""
        sock.close()
    except (ConnectionError, WireError):
        pass
    assert p.poll() is None


def test_a_signal_ends_it_with_the_code_of_the_signal(manager: tuple[subprocess.Popen[str], int, Path]) -> None:
    p, _, _ = manager
    p.send_signal(signal.SIGTERM)
    assert p.wait(20) == 128 + signal.SIGTERM
