"""Telling those who wait where the job began that it has gone on elsewhere.

A node that is started again with the command line it had waits for the others where they first met: node 0 even
starts a manager there. But they have met, and since that place was lost the job's manager is on another node. So that
node goes back now and then, and whoever is there again is told where to look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from onward.agent.peers import split
from onward.errors import WireError
from onward.log import get_logger
from onward.wire.connect import connect
from onward.wire.frames import pack
from onward.wire.identity import Identity
from onward.wire.messages import Elsewhere, encoder

log = get_logger("onward.agent")
ROUND_S = 2.0
CONNECT_S = 2.0
GREETING_S = 5.0


async def go_round(identity: Identity, first: Sequence[str], known: Callable[[], Collection[str]]) -> None:
    """For ever. `known`: where managers of the job are or would be, first the one in office; empty: ours is not."""
    while True:
        await asyncio.sleep(ROUND_S)
        doors = known()
        for door in [d for d in first if doors and d not in doors]:
            await _tell(identity, door, list(doors))


async def _tell(identity: Identity, door: str, doors: list[str]) -> None:
    try:
        host, port = split(door)
        reader, writer = await connect(host, port, identity, CONNECT_S, GREETING_S)
        try:
            writer.write(pack(encoder, Elsewhere(managers=doors)))
            await asyncio.wait_for(reader.read(1), GREETING_S)  # it hangs up when it has heard
        finally:
            writer.close()
    except (WireError, OSError, ValueError, asyncio.TimeoutError) as e:
        log.debug("nobody to tell at %s: %s", door, str(e) or type(e).__name__)
