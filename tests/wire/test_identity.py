"""What leaves the machine is encrypted, and only those who know the token of the job take part, on both ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from waiting import until_async

from onward.errors import WireError
from onward.wire.connect import Listener, Stranger, connect
from onward.wire.frames import accept_peer, read_frame
from onward.wire.identity import Identity, derived, kept_in_memory, on_this_machine

TOKEN, OTHER = b"the secret of this job", b"the secret of another one"
LIMIT_S = 20.0
OUTSIDE = "192.0.2.1"
WORDS = b"what nobody on the way may read" * 4


class Outside(Identity):
    """Takes every connection for one that leaves the machine."""

    def at(self, host: str, server: bool = False) -> ssl.SSLContext | None:
        return super().at(OUTSIDE, server)


def outside(token: bytes, directory: Path) -> Outside:
    directory.mkdir(exist_ok=True)
    made = derived(token, directory)
    return Outside(made.token, made.cert, made.key, made.ca)


@pytest.fixture
def mine(tmp_path: Path) -> Outside:
    return outside(TOKEN, tmp_path / "mine")


@pytest.fixture
def theirs(tmp_path: Path) -> Outside:
    return outside(OTHER, tmp_path / "theirs")


class House:
    """A server of a job: echoes one frame, and notes whom it has refused."""

    def __init__(self, identity: Identity) -> None:
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.sock.getsockname()[1]
        self.refused: list[str] = []
        self.versions: list[str] = []
        self._identity = identity
        self.listener = Listener(self.sock, identity, self._serve, 1.0, self.refused.append)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await accept_peer(reader, writer, self._identity.token, LIMIT_S)
            tls = writer.get_extra_info("ssl_object")
            self.versions.append(tls.version() if tls is not None else "")
            body = await read_frame(reader)
            writer.write(len(body).to_bytes(4, "big") + body)
            await writer.drain()
        except WireError as e:
            self.refused.append(str(e))
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def house(identity: Identity) -> AsyncIterator[House]:
    made = House(identity)
    try:
        yield made
    finally:
        made.listener.close()


async def say(port: int, identity: Identity, words: bytes = WORDS) -> bytes:
    reader, writer = await connect("127.0.0.1", port, identity, LIMIT_S, LIMIT_S)
    try:
        writer.write(len(words).to_bytes(4, "big") + words)
        return await asyncio.wait_for(read_frame(reader), LIMIT_S)
    finally:
        writer.close()


def test_the_same_token_makes_the_same_certificate_everywhere(tmp_path: Path) -> None:
    first, second = outside(TOKEN, tmp_path / "a"), outside(TOKEN, tmp_path / "b")
    assert Path(first.cert).read_bytes() == Path(second.cert).read_bytes()
    assert Path(first.key).stat().st_mode & 0o077 == 0, "nobody else may read it"
    assert Path(first.cert).read_bytes() != Path(outside(OTHER, tmp_path / "c").cert).read_bytes()


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1", True), ("127.3.2.1", True), ("::1", True), ("localhost", True), ("10.0.0.1", False),
     ("0.0.0.0", False), ("fe80::1%eth0", False), ("node-1", False)],
)  # fmt: skip
def test_only_what_stays_on_this_machine_is_not_encrypted(host: str, here: bool, tmp_path: Path) -> None:
    assert on_this_machine(host) is here
    identity = derived(TOKEN, tmp_path)
    assert (identity.at(host) is None) is here
    assert (identity.at(host, server=True) is None) is here
    assert Identity(TOKEN).at(host) is None, "without papers nothing can be"


def test_both_ends_of_one_job_speak_tls_1_3(mine: Outside) -> None:
    async def run() -> None:
        async with house(mine) as h:
            assert await say(h.port, mine) == WORDS
            assert h.versions == ["TLSv1.3"]
            assert h.refused == []

    asyncio.run(run())


def test_a_peer_of_another_job_is_refused_by_either_end_and_the_next_is_let_in(mine: Outside, theirs: Outside) -> None:
    async def run() -> None:
        async with house(mine) as h:
            with pytest.raises(Stranger, match="not of this job"):
                await say(h.port, theirs)
            trusting = theirs.at(OUTSIDE)
            assert trusting is not None
            trusting.verify_mode = ssl.CERT_NONE  # one that would talk to anybody
            with pytest.raises((WireError, OSError)):
                await say(h.port, theirs)
            with pytest.raises((WireError, OSError)):
                await say(h.port, Identity(TOKEN), WORDS)  # knows the token, and speaks in the open
            assert await say(h.port, mine) == WORDS
            assert len(h.refused) == 3
            assert h.versions == ["TLSv1.3"]

    asyncio.run(run())


def test_one_that_says_nothing_is_not_waited_for(mine: Outside) -> None:
    async def run() -> None:
        async with house(mine) as h:
            reader, writer = await asyncio.open_connection("127.0.0.1", h.port)
            assert await asyncio.wait_for(reader.read(), LIMIT_S) == b"", "it is hung up on"
            writer.close()
            assert len(h.refused) == 1

    asyncio.run(run())


def test_who_says_nothing_takes_nobodys_turn(mine: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.wire.connect.AT_ONCE", 1)

    async def run() -> None:
        async with house(mine) as h:
            silent = [await asyncio.open_connection("127.0.0.1", h.port) for _ in range(3)]
            assert await say(h.port, mine) == WORDS
            assert h.refused == [], "their time is not over yet"
            for _, writer in silent:
                writer.close()

    asyncio.run(run())


def test_of_many_that_come_at_once_a_few_have_their_turn_and_then_the_others(
    mine: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of agents: were all to begin together, the time of each would be over before any was through."""
    monkeypatch.setattr("onward.wire.connect.AT_ONCE", 2)

    async def run() -> None:
        async with house(mine) as h:
            slow = [await asyncio.open_connection("127.0.0.1", h.port) for _ in range(2)]
            for _, writer in slow:
                writer.write(b"\x16")  # the first byte of a handshake
                await writer.drain()
            await until_async(lambda: h.listener._turns.locked(), "both have their turn")
            others = [asyncio.ensure_future(say(h.port, mine)) for _ in range(6)]
            assert await asyncio.gather(*others) == [WORDS] * 6, "when the time of the slow ones is over"
            assert len(h.refused) == 2
            for _, writer in slow:
                writer.close()

    asyncio.run(run())


def test_one_that_has_left_again_takes_nobodys_turn(mine: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.wire.connect.AT_ONCE", 1)
    begun = []

    class Watched(Outside):
        def at(self, host: str, server: bool = False) -> ssl.SSLContext | None:
            context = super().at(host, server)
            if server and context is not None:
                context.sni_callback = lambda *hello: begun.append(hello)
            return context

    async def run() -> None:
        async with house(Watched(mine.token, mine.cert, mine.key, mine.ca)) as h:
            await h.listener._turns.acquire()  # somebody has it
            gone = asyncio.ensure_future(say(h.port, mine))
            await until_async(lambda: h.listener._turns._waiters, "it waits for its turn")
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone
            stays = asyncio.ensure_future(say(h.port, mine))
            await until_async(lambda: len(h.listener._turns._waiters or ()) == 2, "so does another")
            h.listener._turns.release()
            assert await stays == WORDS
            assert len(begun) == 1
            assert h.refused == []

    asyncio.run(run())


class Way:
    """Somebody between the two: keeps what passes, and may change it."""

    def __init__(self, target: int, spoil: bool) -> None:
        self._target, self._spoil = target, spoil
        self.seen = b""

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(self._pump(reader, back, self._spoil), self._pump(there, writer, False))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, spoil: bool) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            while data := await reader.read(65536):
                self.seen += data
                if spoil and data[:1] != b"\x16":  # all but the first word, which is the client's
                    data = data[:-1] + bytes([data[-1] ^ 1])
                writer.write(data)
        writer.close()


def test_nobody_on_the_way_reads_or_changes_anything(mine: Outside) -> None:
    async def run(spoil: bool) -> tuple[bytes, bytes | None]:
        async with house(mine) as h:
            way = Way(h.port, spoil)
            port = await way.start()
            try:
                return way.seen, await say(port, mine)
            except (WireError, OSError):
                return way.seen, None
            finally:
                assert len(way.seen) > len(WORDS)
                assert b"nobody on the way" not in way.seen
                way._server.close()

    assert asyncio.run(run(False))[1] == WORDS
    assert asyncio.run(run(True))[1] is None, "what was changed is not taken in"


def pair() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        yield client
        yield server.accept()[0]


def meet(client: Identity, server: Identity) -> tuple[bytes, list[BaseException]]:
    """One frame over plain blocking sockets, as ranks have them."""
    near, far = pair()
    failed: list[BaseException] = []

    def serve() -> None:
        try:
            far.settimeout(LIMIT_S)
            with server.accepted(far) as peer:
                peer.sendall(WORDS)
        except OSError as e:
            failed.append(e)

    thread = threading.Thread(target=serve)
    thread.start()
    got = b""
    try:
        near.settimeout(LIMIT_S)
        with client.connected(near, OUTSIDE) as sock:
            while data := sock.recv(4096):
                got += data
    except OSError as e:
        failed.append(e)
    finally:
        near.close()
        thread.join(LIMIT_S)
    return got, failed


def test_ranks_have_it_too(mine: Outside, theirs: Outside) -> None:
    assert meet(mine, mine) == (WORDS, [])
    got, failed = meet(theirs, mine)
    assert got == b""
    assert any(isinstance(e, ssl.SSLError) for e in failed)


def test_it_is_handed_on_by_the_environment(mine: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in mine.environment.items():
        monkeypatch.setenv(name, value)
    again = Identity.from_environment()
    assert (again.token, again.cert, again.key, again.ca) == (mine.token, mine.cert, mine.key, mine.ca)
    for name, value in Identity(TOKEN).environment.items():
        monkeypatch.setenv(name, value)
    assert Identity.from_environment() == Identity(TOKEN)


def test_one_that_starts_no_others_leaves_no_files() -> None:
    identity = kept_in_memory(TOKEN)
    assert not Path(identity.key).exists()
    assert identity.at(OUTSIDE) is not None
