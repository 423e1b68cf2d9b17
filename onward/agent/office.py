"""The way to whoever manages the job: one connection, and where to look when it breaks.

Every agent can host a manager: the socket is there from the start, and a manager is started when somebody knocks. So
the addresses of all agents, in the order of their nodes, are a line of succession (`line.py`). Whether a new manager
may take office is not decided here: it needs the votes of a majority.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from onward.agent.line import Line
from onward.agent.peers import split
from onward.errors import WireError
from onward.log import get_logger
from onward.wire.connect import Stranger, connect
from onward.wire.frames import decode, pack, read_frame
from onward.wire.identity import Identity
from onward.wire.messages import Beat, Elsewhere, Orders, Refused, encoder, from_manager

log = get_logger("onward.agent")
CONNECT_S = 2.0
GREETING_S = 5.0
AGAIN_S = 0.02
TURNED_AWAY_S = 0.5  # between two visits to a manager that does not let us in


class Office:
    """Keeps a connection to the manager. `on_message` takes what it says, `on_open` is called when it can be told."""

    def __init__(
        self, identity: Identity, line: Line, on_message: Callable[[object], None], on_open: Callable[[], None]
    ) -> None:
        self._identity = identity
        self._line = line
        self._on_message = on_message
        self._on_open = on_open
        self._writer: asyncio.StreamWriter | None = None
        self.turned_away = 0  # visits in a row that ended without a word
        self._over = False  # the job has ended: nobody need be looked for
        self._left = False  # we are ending
        self._nobody_home = False
        self._in_office = False
        self._vacant_since = time.monotonic()
        self._in_vain: dict[str, tuple[float, float]] = {}  # doors at which nobody answers: our first and last try

    @property
    def open(self) -> bool:
        return self._writer is not None

    @property
    def in_office(self) -> bool:
        """Whether the manager behind this connection has a majority."""
        return self.open and self._in_office

    @property
    def lonely_s(self) -> float:
        """For how long nobody who is in office has been heard of."""
        return 0.0 if self._in_office else time.monotonic() - self._vacant_since

    @property
    def doors(self) -> list[str]:
        return self._line.doors

    def silent_s(self, door: str) -> float:
        """For how long we have knocked at this door in vain; 0 where we have not tried, or somebody has answered."""
        first, last = self._in_vain.get(door, (0.0, 0.0))
        return last - first

    def send(self, message: object) -> bool:
        if self._writer is None:
            return False
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._writer.write(pack(encoder, message))
        return True

    def leave(self) -> None:
        """Look for nobody any more. To be cancelled is not enough: a `wait_for` that has just ended swallows it."""
        self._left = True

    async def run(self) -> None:
        """For ever: connect, listen, and look for the next one."""
        while not self._over and not self._left:
            heard = await self._visit(self._line.door)
            self._line.left(time.monotonic(), heard, self._nobody_home)
            if not self._over:
                await asyncio.sleep(AGAIN_S if self.turned_away < 3 else TURNED_AWAY_S)

    async def _visit(self, door: str) -> bool:
        """One connection from its beginning to its end. True when there was a manager in office behind it."""
        in_office = heard = self._nobody_home = False
        writer: asyncio.StreamWriter | None = None
        began = time.monotonic()
        try:
            host, port = split(door)
            reader, opened = await connect(host, port, self._identity, CONNECT_S, GREETING_S)
            self._writer = writer = opened
            self._in_vain.pop(door, None)
            self._on_open()
            self.turned_away += 1
            came = time.monotonic()
            while not self._left:
                wait_s = self._line.wait_s(time.monotonic() - came, in_office)
                message = decode(from_manager, await asyncio.wait_for(read_frame(reader), wait_s))
                if not isinstance(message, Refused):
                    self.turned_away = 0
                if isinstance(message, Elsewhere):
                    self._line.sent_on(time.monotonic(), message.managers)
                    break
                if isinstance(message, Orders):
                    self._over = message.exit_code is not None
                    self._line.told(message.managers, message.granted)
                    if message.granted:
                        in_office = heard = self._in_office = True
                elif isinstance(message, Beat) and not message.term and in_office:
                    in_office = heard = False  # it has lost its majority, and another may have it
                    came = self._left_office()
                self._on_message(message)
        except (WireError, OSError, ValueError, asyncio.TimeoutError) as e:
            # The socket belongs to the agent, not to its manager: refused means that the agent itself is gone.
            self._nobody_home = isinstance(e, ConnectionRefusedError)
            if self._writer is None:
                self._in_vain[door] = (self._in_vain.get(door, (began,))[0], time.monotonic())
            self.turned_away += isinstance(e, Stranger)
            log.info("manager at %s: %s", door, str(e) or type(e).__name__)
        finally:
            if in_office:
                self._left_office()
            self._writer = None
            if writer is not None:
                writer.close()
        return heard

    def _left_office(self) -> float:
        self._in_office, self._vacant_since = False, time.monotonic()
        return self._vacant_since
