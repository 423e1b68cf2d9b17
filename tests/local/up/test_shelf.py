"""Sockets outlive the process that made them: nobody is refused while it is started anew."""

from __future__ import annotations

import gc
import os
import random
import selectors
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

from onward.local.shelf import NAME, Hand, Shelf


class Supervisor:
    """Turns a shelf, as the supervisor does."""

    def __init__(self, state: Path) -> None:
        self._selector, self._over = selectors.DefaultSelector(), False
        self.shelf = Shelf(state, self._selector)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over:
            for key, _ in self._selector.select(0.02):
                key.data()

    def die(self) -> None:
        """Its files are closed, as the kernel does it."""
        self._over = True
        self._thread.join(20)
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        for fd in self.shelf._kept.values():
            os.close(fd)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    deep = tmp_path / ("a-long-name" * 12)  # longer than the address of a socket may be
    (deep / "run").mkdir(parents=True)
    return deep


@pytest.fixture
def supervisor(state: Path) -> Iterator[Supervisor]:
    made = Supervisor(state)
    yield made
    made.die()


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def test_who_comes_meanwhile_waits_and_is_served(state: Path, supervisor: Supervisor) -> None:
    first = Hand(state).get("TCP web", listening)
    address = first.getsockname()
    first.close()  # it was killed
    client = socket.create_connection(address, timeout=30)
    client.sendall(b"patient")
    again = Hand(state).get("TCP web", lambda: pytest.fail("a second socket"))
    again.settimeout(30)
    taken, _ = again.accept()
    assert taken.recv(100) == b"patient"
    for sock in (client, taken, again):
        sock.close()


def test_what_is_no_longer_wanted_is_closed(state: Path, supervisor: Supervisor) -> None:
    hand = Hand(state)
    addresses = {}
    for name in ("kept", "left", "dropped"):
        sock = hand.get(name, listening)
        addresses[name] = sock.getsockname()
        sock.close()
    hand.let_go("dropped")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(addresses["dropped"], timeout=30)
    second = Hand(state)
    second.get("kept", listening).close()
    socket.create_connection(addresses["left"], timeout=30).close()  # it may still be asked for
    second.complete()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(addresses["left"], timeout=30)
    socket.create_connection(addresses["kept"], timeout=30).close()


def test_a_new_supervisor_gets_them_all(state: Path) -> None:
    first = Supervisor(state)
    hand = Hand(state)
    ours = hand.get("TCP web", listening)
    first.die()
    hand.complete()  # nobody is there
    alone = hand.get("TCP alone", listening)
    second = Supervisor(state)
    try:
        hand.complete()
        assert set(second.shelf._kept) == {"TCP web", "TCP alone"}
        taken = Hand(state).get("TCP web", lambda: pytest.fail("a second socket"))
        assert taken.getsockname() == ours.getsockname()
        taken.close()
    finally:
        second.die()
        ours.close()
        alone.close()


def test_rubbish_on_the_shelf(state: Path, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    hand = Hand(state)
    hand.get("TCP web", listening).close()
    monkeypatch.chdir(state / "run")
    chance = random.Random(4)
    rubbish = [b"[" * 4000, b"5", b"{}", b'{"op":"keep"}', b'{"op":"take","name":[]}', b'{"op":"drop","name":"x"}']
    rubbish += [chance.randbytes(chance.randrange(1, 5000)) for _ in range(50)]
    gc.collect()  # what earlier tests have left would be closed meanwhile
    before = len(os.listdir("/proc/self/fd"))
    for packet in rubbish:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(NAME)
            client.settimeout(30)
            socket.send_fds(client, [packet], [0, 1])
            assert client.recv(100) in (b"", b"done")
    until(lambda: len(os.listdir("/proc/self/fd")) <= before, "no file that came with it is left open", 20)
    Hand(state).get("TCP web", lambda: pytest.fail("a second socket")).close()
