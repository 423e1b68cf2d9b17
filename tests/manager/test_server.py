"""The manager's port: agents of this job are served, whatever else knocks is refused and counted, and nobody waits."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from played import facts_of
from waiting import until_async

from onward.agent.emissary import go_round
from onward.core.facts import RankFacts, Stage
from onward.core.job import Limits
from onward.core.membership import Member
from onward.core.policy import parse_policies
from onward.manager.journal import read
from onward.manager.server import ManagerServer
from onward.manager.settings import ManagerSettings
from onward.wire.frames import FrameReader, decode, greet_server, pack, read_frame
from onward.wire.identity import Identity
from onward.wire.messages import Elsewhere, Note, Orders, Refused, encoder, from_manager

TOKEN = b"the secret of this job, 32 bytes"
LIMIT_S = 60.0
SETTINGS = ManagerSettings(world_size=2, nodes=1, policies=parse_policies("retry,recover-in-place"), limits=Limits())


class Meeting:
    """A manager that serves on loopback, and ways to come to it."""

    def __init__(self, server: ManagerServer, port: int) -> None:
        self.server = server
        self.port = port

    async def knock(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def agent(self, version: int = 1, node: int = 0, stage: Stage = Stage.STARTING, nproc: int = 2) -> Agent:
        reader, writer = await self.knock()
        await greet_server(reader, writer, TOKEN, LIMIT_S)
        made = Agent(reader, writer)
        made.say(version, node, stage, nproc)
        return made

    async def one(self, member: Member, software: str = "") -> Agent:
        """An agent as it describes itself."""
        reader, writer = await self.knock()
        await greet_server(reader, writer, TOKEN, LIMIT_S)
        made = Agent(reader, writer, member, software)
        made.say(1)
        return made

    async def closed(self, reader: asyncio.StreamReader) -> None:
        """The manager hangs up."""
        async def drain() -> None:
            with contextlib.suppress(ConnectionError):
                while await reader.read(1 << 16):
                    pass

        await asyncio.wait_for(drain(), LIMIT_S)


class Agent:
    """Takes all orders, as soon as it reads them."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        member: Member | None = None,
        software: str = "",
    ) -> None:
        self.reader = reader
        self.writer = writer
        self._taken: Orders | None = None
        self._again = 0
        self.member, self._software = member, software

    def say(self, version: int, node: int = 0, stage: Stage = Stage.STARTING, nproc: int = 2) -> None:
        ranks = [RankFacts(rank=r, node=0, incarnation=1, stage=stage, library=True) for r in (0, 1)]
        agent = self.member or Member(id=f"agent{node}", nproc=nproc, wanted=node)
        self._said = version, node, stage, nproc
        number = 1000 * version + self._again
        self.writer.write(pack(encoder, facts_of(agent, number, self._taken, ranks, software=self._software)))

    async def notes(self, count: int) -> list[Note]:
        """The next loud ones."""
        found: list[Note] = []
        while len(found) < count:
            message = decode(from_manager, await asyncio.wait_for(read_frame(self.reader), LIMIT_S))
            if isinstance(message, Note) and message.loud:
                found.append(message)
        return found

    async def orders(self, phase: str) -> Orders:
        """The first orders of that phase."""
        while True:
            message = decode(from_manager, await asyncio.wait_for(read_frame(self.reader), LIMIT_S))
            if isinstance(message, Orders):
                self._taken = message
                self._again += 1
                self.say(*self._said)
                if message.phase == phase:
                    return message


def serving(
    body: Callable[[Meeting], Awaitable[Any]], journal: Path | None = None, settings: ManagerSettings = SETTINGS
) -> None:
    async def go() -> None:
        sock = socket.create_server(("127.0.0.1", 0))
        server = ManagerServer(settings, Identity(TOKEN), journal)
        serve = asyncio.get_running_loop().create_task(server.serve(sock, idle_s=3600.0))
        try:
            await body(Meeting(server, sock.getsockname()[1]))
            assert not serve.done(), "the manager serves on"
        finally:
            serve.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serve

    asyncio.run(go())


def test_an_agent_gets_orders_and_the_job_is_in_the_journal(tmp_path: Path) -> None:
    async def body(m: Meeting) -> None:
        agent = await m.agent()
        orders = await agent.orders("Starting")
        assert [o.want for o in orders.ranks] == ["start", "start"]
        agent.say(2, stage=Stage.SETUP)
        orders = await agent.orders("Forming")
        assert (orders.generation, orders.term) == (1, 1)
        assert read(tmp_path / "journal")[-1] == orders.job

    serving(body, tmp_path / "journal")


def test_a_new_manager_goes_on_from_the_journal(tmp_path: Path) -> None:
    async def first(m: Meeting) -> None:
        agent = await m.agent(stage=Stage.SETUP)
        await agent.orders("Forming")

    async def second(m: Meeting) -> None:
        orders = await (await m.agent(stage=Stage.SETUP)).orders("Forming")
        assert (orders.generation, orders.term) == (1, 2), "the same generation, under a new term"

    serving(first, tmp_path / "journal")
    serving(second, tmp_path / "journal")


@pytest.mark.parametrize(
    "said",
    [b"\xff" * 100, b"GET / HTTP/1.0\r\n\r\n", struct.pack(">I", 0xFFFFFFFF), struct.pack(">I", 32) + b"x" * 32, b""],
    ids=["garbage", "http", "4 GB", "wrong proof", "nothing"],
)
def test_a_stranger_is_refused_and_the_job_goes_on(said: bytes) -> None:
    async def body(m: Meeting) -> None:
        agent = await m.agent()
        await agent.orders("Starting")
        reader, writer = await m.knock()
        writer.write(said)
        if not said:
            writer.close()
        else:
            await m.closed(reader)
        await until_async(lambda: m.server.refused == 1, "it is refused")
        agent.say(2, stage=Stage.SETUP)
        await agent.orders("Forming")
        assert m.server.connected == 1

    serving(body)


def test_one_that_says_nothing_holds_nobody_up() -> None:
    async def body(m: Meeting) -> None:
        silent = [await m.knock() for _ in range(50)]
        agent = await m.agent(stage=Stage.SETUP)
        await agent.orders("Forming")
        for reader, _ in silent:
            await m.closed(reader)
        assert m.server.refused == 50

    serving(body)


def test_one_that_knows_the_token_but_speaks_nonsense_is_cut_off() -> None:
    async def body(m: Meeting) -> None:
        agent = await m.agent()
        await agent.orders("Starting")
        reader, writer = await m.knock()
        await greet_server(reader, writer, TOKEN, LIMIT_S)
        writer.write(struct.pack(">I", 5) + b"\xc1hihi")
        await m.closed(reader)
        assert m.server.refused == 1
        agent.say(2, stage=Stage.SETUP)
        await agent.orders("Forming")

    serving(body)


def test_an_agent_without_a_place_stands_by_and_its_word_about_ranks_does_not_count() -> None:
    async def body(m: Meeting) -> None:
        agent = await m.agent()
        assert (await agent.orders("Starting")).node == 0
        for node in (-1, 1, 7):
            stranger = await m.agent(node=node, stage=Stage.EXITED)
            orders = await stranger.orders("Starting")
            assert (orders.node, orders.ranks) == (-1, [])
        agent.say(2, stage=Stage.SETUP)
        await agent.orders("Forming")

    serving(body)


def test_an_agent_with_another_number_of_ranks_is_refused() -> None:
    async def body(m: Meeting) -> None:
        stranger = await m.agent(nproc=3)
        told = decode(from_manager, await asyncio.wait_for(read_frame(stranger.reader), LIMIT_S))
        assert told == Refused(why="it has 3 ranks a node, the job has 2 (--nproc-per-node)")
        await m.closed(stranger.reader)
        assert m.server.refused == 1

    serving(body)


def test_an_agent_that_comes_back_takes_the_place_of_its_old_connection() -> None:
    async def body(m: Meeting) -> None:
        old = await m.agent(version=9)
        await old.orders("Starting")
        new = await m.agent(version=1)
        await new.orders("Starting")
        await m.closed(old.reader)
        assert m.server.connected == 1
        new.say(2, stage=Stage.SETUP)
        await new.orders("Forming")

    serving(body)


def test_who_was_in_a_pod_before_its_container_was_started_again_is_dead() -> None:
    """Its connection may stay half-open, and its kernel is not the manager's: nobody else would know."""
    before = Member(id="before", nproc=2, pod="uid", sole=True, boot="kernelpid:[1]", pid=1, born=100)
    after = replace(before, id="after", boot="kernelpid:[2]", born=200)

    async def body(m: Meeting) -> None:
        old = await m.one(before)
        await old.orders("Starting")
        new = await m.one(after)
        await m.closed(old.reader)
        late = await m.one(before)  # its last word can come after that of its successor
        await m.closed(late.reader)
        assert m.server.connected == 1
        assert not new.reader.at_eof()

    serving(body)


def test_nodes_with_other_versions_are_named() -> None:
    async def body(m: Meeting) -> None:
        first = await m.one(Member(id="a", host="a", nproc=2), "Python 3.11, torch 2.13.0")
        await first.orders("Starting")
        await m.one(Member(id="b", host="b", nproc=2), "Python 3.11, torch 2.13.0")
        await m.one(Member(id="c", host="c", nproc=2), "Python 3.13, torch 2.7.1")
        told = [note.text for note in await first.notes(1) if "torch" in note.text]
        assert told == [
            "c (127.0.0.1) has Python 3.13, torch 2.7.1; a (127.0.0.1) has Python 3.11, torch 2.13.0: "
            "the same image on all nodes would compute the same"
        ]

    serving(body)


def test_an_old_report_does_not_undo_a_newer_one() -> None:
    async def body(m: Meeting) -> None:
        agent = await m.agent()
        await agent.orders("Starting")
        agent.say(5, stage=Stage.STARTING)
        agent.say(4, stage=Stage.SETUP)  # late: reordered on its way
        agent.say(6, stage=Stage.STARTING)
        again = await m.agent()  # is told how things stand after all of that
        first = decode(from_manager, await asyncio.wait_for(read_frame(again.reader), LIMIT_S))
        assert isinstance(first, Orders)
        assert first.phase == "Starting"

    serving(body)


def test_a_journal_that_cannot_be_written_does_not_stop_the_job(tmp_path: Path) -> None:
    async def body(m: Meeting) -> None:
        journal = m.server._journal
        assert journal is not None
        journal.close()
        journal._fd = os.open("/dev/full", os.O_RDWR)  # every write fails
        agent = await m.agent(stage=Stage.SETUP)
        orders = await agent.orders("Forming")
        assert orders.generation == 1

    serving(body, tmp_path / "journal")


def test_who_waits_for_a_job_that_has_begun_elsewhere_is_told_where() -> None:
    async def body(m: Meeting) -> None:
        waiting = await m.agent(node=0)
        door = f"127.0.0.1|{m.port}"
        known = [[], ["10.0.0.2|29500", door], ["10.0.0.2|29500"]]  # not in office yet; this door is its own; now
        going = asyncio.ensure_future(
            go_round(Identity(TOKEN), [door], lambda: known.pop(0) if len(known) > 1 else known[0])
        )
        try:
            while not isinstance(message := decode(from_manager, await read_frame(waiting.reader)), Elsewhere):
                pass
        finally:
            going.cancel()
        assert message.managers == ["10.0.0.2|29500"]
        assert known == [["10.0.0.2|29500"]], "not sooner"
        assert m.server.phase == "", "nobody is counted who only came to tell"

    serving(body, settings=dataclasses.replace(SETTINGS, nodes=2, world_size=4))


def test_a_job_that_is_in_office_here_heeds_nobody_who_says_that_it_is_elsewhere() -> None:
    async def body(m: Meeting) -> None:
        agent = await m.agent()
        await agent.orders("Starting")
        reader, writer = await m.knock()
        await greet_server(reader, writer, TOKEN, LIMIT_S)
        writer.write(pack(encoder, Elsewhere(managers=["10.0.0.2|29500"])))
        await m.closed(reader)
        with contextlib.suppress(asyncio.TimeoutError):
            while True:
                body = await asyncio.wait_for(read_frame(agent.reader), 0.5)
                assert not isinstance(decode(from_manager, body), Elsewhere)
        assert (m.server.phase, m.server.connected) == ("Starting", 1)

    serving(body)


class Wire(asyncio.Transport):
    """Keeps what is written to it, write by write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass


def test_what_is_said_to_an_agent_at_one_time_is_one_write() -> None:
    """With TLS each is a record and a call of the kernel, and there may be ten thousand agents."""
    async def go() -> None:
        server = ManagerServer(SETTINGS, Identity(TOKEN), None)
        reader = asyncio.StreamReader()
        wires = {name: Wire() for name in ("a", "b")}
        for name, wire in wires.items():
            protocol = asyncio.StreamReaderProtocol(reader)
            server._peers[name] = asyncio.StreamWriter(wire, protocol, reader, asyncio.get_running_loop())
        words = [Note(text=text) for text in ("for all", "for a", "for nobody here", "for all again")]
        server._post(zip((None, "a", "c", None), words, strict=True))
        written = {name: [FrameReader().feed(data) for data in wire.writes] for name, wire in wires.items()}
        heard = {name: [[decode(from_manager, f).text for f in w] for w in writes] for name, writes in written.items()}
        assert heard == {"a": [["for all", "for a", "for all again"]], "b": [["for all", "for all again"]]}

    asyncio.run(go())
