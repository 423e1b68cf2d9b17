"""The way to the manager: whose silence counts against whom."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from onward.agent.line import Line, Patience
from onward.agent.office import AGAIN_S, Office
from onward.wire.identity import Identity


async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def knock(doors: list[str], tries: int) -> Office:
    """An agent looks for a manager at these doors, until each of its visits has ended `tries` times."""
    enough = asyncio.Event()
    visits = 0

    class Counted(Line):
        def left(self, now: float, heard: bool, nobody_home: bool) -> str:
            nonlocal visits
            visits += 1
            if visits >= tries:
                enough.set()
            return super().left(now, heard, nobody_home)

    office = Office(Identity(b"t" * 32), Counted(doors, Patience(faithful_s=0.0)), lambda _: None, lambda: None)
    looking = asyncio.ensure_future(office.run())
    await asyncio.wait_for(enough.wait(), 20.0)
    looking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await looking
    return office


def test_a_manager_is_not_silent_where_nobody_has_asked_it() -> None:
    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            gone = f"127.0.0.1|{free.getsockname()[1]}"
        office = await knock([gone], tries=5)
        assert office.silent_s(gone) > 0.0
        assert office.silent_s("127.0.0.1|1") == 0.0, "the one on this node was never asked, and is not to be killed"

    asyncio.run(story())


def test_a_manager_that_lets_nobody_in_is_silent_from_the_first_knock_on() -> None:
    async def story() -> None:
        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        door = f"127.0.0.1|{server.sockets[0].getsockname()[1]}"
        office = await knock([door], tries=12)
        assert office.silent_s(door) >= 11 * AGAIN_S, "not since the last knock"
        server.close()

    asyncio.run(story())
