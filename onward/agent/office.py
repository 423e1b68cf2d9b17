"""The way to whoever manages the job: one connection, and where to look when it breaks.

Every agent can host a manager: the socket is there from the start, and a manager is started when somebody knocks. So
the addresses of all agents, in the order of their nodes, are a line of succession. An agent that has lost the manager
knocks at the same door for a while, since its host starts it again; then at the next. Whether a new one may take office
is not decided here: it needs the votes of a majority.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

from onward.agent.peers import split
from onward.errors import WireError
from onward.log import get_logger
from onward.wire.frames import decode, greet_server, pack, read_frame
from onward.wire.messages import Orders, encoder, from_manager

log = get_logger("onward.agent")
CONNECT_S = 2.0
GREETING_S = 5.0
AGAIN_S = 0.02
TURNED_AWAY_S = 0.5  # between two visits to a manager that does not let us in
FAITHFUL_S = 2.0  # so long the same manager is looked for before the next in line
SILENCE_S = 6.0  # a manager beats every second
OFFICE_S = 8.0  # one that has no majority by then will not get it from us


class Office:
    """Keeps a connection to the manager. `on_message` takes what it says, `on_open` is called when it can be told."""

    def __init__(
        self, token: bytes, doors: Sequence[str], on_message: Callable[[object], None], on_open: Callable[[], None]
    ) -> None:
        self._token = token
        self._first = list(doors)  # where to begin
        self._known: list[str] = []  # the line of succession, as the last manager told it
        self._on_message = on_message
        self._on_open = on_open
        self._writer: asyncio.StreamWriter | None = None
        self._had_orders = False
        self.turned_away = 0  # visits in a row that ended without a word
        self._over = False  # the job has ended: nobody need be looked for
        self._nobody_home = False
        self.lost_at = time.monotonic()  # since when there is no manager, while there is none

    @property
    def open(self) -> bool:
        return self._writer is not None

    @property
    def doors(self) -> list[str]:
        return list(dict.fromkeys([*self._first, *self._known]))

    def send(self, message: object) -> bool:
        if self._writer is None:
            return False
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._writer.write(pack(encoder, message))
        return True

    async def run(self) -> None:
        """For ever: connect, listen, and look for the next one."""
        at = 0
        while not self._over:
            doors = self.doors
            door = doors[at % len(doors)]
            since = time.monotonic()
            heard = True
            while heard or len(doors) == 1 or (time.monotonic() - since < FAITHFUL_S and not self._nobody_home):
                heard = await self._visit(door)
                if heard:
                    since = time.monotonic()
                    doors = self.doors
                    at = doors.index(door)
                if self._over:
                    return
                await asyncio.sleep(AGAIN_S if self.turned_away < 3 else TURNED_AWAY_S)
            at += 1

    async def _visit(self, door: str) -> bool:
        """One connection from its beginning to its end. True when there was a manager in office behind it."""
        in_office = self._nobody_home = False
        writer: asyncio.StreamWriter | None = None
        try:
            host, port = split(door)
            reader, opened = await asyncio.wait_for(asyncio.open_connection(host, port), CONNECT_S)
            writer = opened
            await greet_server(reader, opened, self._token, GREETING_S)
            self._writer = opened
            self._on_open()
            self.turned_away += 1
            came = time.monotonic()
            while True:
                message = decode(from_manager, await asyncio.wait_for(read_frame(reader), SILENCE_S))
                self.turned_away = 0
                if isinstance(message, Orders):
                    in_office = self._had_orders = True
                    self._over = message.exit_code is not None
                    self._known = message.managers
                self._on_message(message)
                if self._had_orders and not in_office and time.monotonic() - came > OFFICE_S and len(self.doors) > 1:
                    raise WireError("this manager is not in office")
        except (WireError, OSError, ValueError, asyncio.TimeoutError) as e:
            # The socket belongs to the agent, not to its manager: refused means that the agent itself is gone.
            self._nobody_home = isinstance(e, ConnectionRefusedError)
            log.info("manager at %s: %s", door, str(e) or type(e).__name__)
        finally:
            if self._writer is not None:
                self.lost_at = time.monotonic()
            self._writer = None
            if writer is not None:
                writer.close()
        return in_office
