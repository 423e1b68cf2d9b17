"""Agents among themselves: requests to the one that keeps the store, and what they keep for each other's ranks.

One outgoing connection for each agent that we ask, opened when it is first needed; answers come back on it. A
connection that breaks answers what was asked on it with an error: whoever waits goes to the fence, and the job decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from onward.agent.keeper import Keeper
from onward.errors import WireError
from onward.log import get_logger
from onward.wire.connect import Listener, connect
from onward.wire.frames import accept_peer, decode, pack, read_frame
from onward.wire.identity import Identity
from onward.wire.messages import StoreReply, encoder
from onward.wire.peers import (
    FetchKept,
    KeepSlot,
    Kept,
    PeerHello,
    PeerReply,
    PeerStore,
    SlotKept,
    from_peer,
    to_peer,
)

log = get_logger("onward.agent")
GREETING_S = 5.0
CONNECT_S = 3.0
FETCH_S = 20.0


def split(address: str) -> tuple[str, int]:
    """HOST and PORT of "HOST|PORT"; IPv6 addresses hold colons, so a bar stands between the two."""
    host, _, port = address.rpartition("|")
    return host, int(port)


class Peers:
    """See the module's docstring. `kept`, `on_request(agent, message)`, `on_reply(message)`: the agent's logic."""

    def __init__(
        self,
        me: str,
        identity: Identity,
        keeper: Keeper,
        kept: Callable[[int, int], Kept],
        on_request: Callable[[str, object], None],
        on_reply: Callable[[PeerReply], None],
    ) -> None:
        self._me = me
        self._identity = identity
        self._keeper = keeper
        self._kept = kept
        self._on_request = on_request
        self._on_reply = on_reply
        self._links: dict[str, _Link] = {}  # address -> our connection to it
        self._writers: dict[str, asyncio.StreamWriter] = {}  # agent -> its connection to us
        self._server: Listener | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.refused = 0

    def listen(self, sock: socket.socket) -> None:
        self._server = Listener(sock, self._identity, self._on_connection, GREETING_S, self._refuse)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        for writer in self._writers.values():
            writer.close()

    # ------------------------------------------------------------------------------------------ asked

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        agent, known = "", False
        try:
            await accept_peer(reader, writer, self._identity.token, GREETING_S)
            while True:
                message: object = decode(from_peer, await read_frame(reader))
                known = True
                match message:
                    case PeerHello():
                        agent = message.agent
                        self._writers[agent] = writer
                    case KeepSlot():
                        kept = self._keeper.keep_slot(message)
                        writer.write(pack(encoder, SlotKept(step=message.step if kept else -1)))
                    case FetchKept():
                        writer.write(pack(encoder, self._kept(message.rank, message.attempt)))
                    case _ if agent:
                        self._on_request(agent, message)
                    case _:
                        raise WireError(f"a {type(message).__name__} from somebody who has not said who he is")
        except asyncio.CancelledError:
            return  # we are ending; nobody need be told by a traceback
        except WireError as e:
            if not known:
                self._refuse(str(e))
        finally:
            if self._writers.get(agent) is writer:
                del self._writers[agent]
            writer.close()

    def _refuse(self, why: str) -> None:
        self.refused += 1
        log.warning("a connection to the agent was refused: %s", why)

    def answer(self, agent: str, message: object) -> None:
        writer = self._writers.get(agent)
        if writer is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                writer.write(pack(encoder, message))

    # ------------------------------------------------------------------------------------------ asking

    def send(self, address: str, message: object) -> None:
        link = self._links.get(address)
        if link is None or link.over:
            link = self._links[address] = _Link(address, self._on_reply)
            task = asyncio.get_running_loop().create_task(link.run(self._me, self._identity))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        link.send(message)

    async def fetch(self, address: str, rank: int, attempt: int) -> Kept:
        """What the agent at `address` keeps for `rank`. WireError when it cannot be had."""
        try:
            host, port = split(address)
            reader, writer = await connect(host, port, self._identity, CONNECT_S, GREETING_S)
            try:
                writer.write(pack(encoder, FetchKept(rank=rank, attempt=attempt)))
                answer = decode(to_peer, await asyncio.wait_for(read_frame(reader), FETCH_S))
            finally:
                writer.close()
        except (OSError, ValueError, asyncio.TimeoutError) as e:
            raise WireError(f"the agent at {address} does not answer: {e}") from e
        if not isinstance(answer, Kept):
            raise WireError(f"the agent at {address} answered with something else")
        return answer


class _Link:
    """Our connection to one agent. What is sent before it stands waits in line."""

    def __init__(self, address: str, on_reply: Callable[[PeerReply], None]) -> None:
        self._address = address
        self._on_reply = on_reply
        self._line: list[object] = []
        self._writer: asyncio.StreamWriter | None = None
        self._asked: set[tuple[int, int]] = set()  # (process, request): nobody has answered these yet
        self.over = False

    def send(self, message: object) -> None:
        if isinstance(message, PeerStore):
            self._asked.add((message.process, message.request.id))
        if self._writer is None:
            self._line.append(message)
            return
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._writer.write(pack(encoder, message))

    async def run(self, me: str, identity: Identity) -> None:
        why = "it closed the connection"
        writer: asyncio.StreamWriter | None = None
        try:
            host, port = split(self._address)
            reader, opened = await connect(host, port, identity, CONNECT_S, GREETING_S)
            writer = opened
            for message in [PeerHello(agent=me), *self._line]:
                opened.write(pack(encoder, message))
            self._writer, self._line = opened, []
            while True:
                message = decode(to_peer, await read_frame(reader))
                if isinstance(message, PeerReply):
                    self._asked.discard((message.process, message.reply.id))
                    self._on_reply(message)
        except (WireError, OSError, ValueError, asyncio.TimeoutError) as e:
            why = str(e) or type(e).__name__
        finally:
            self.over = True
            if writer is not None:
                writer.close()
        for process, request in sorted(self._asked):
            error = f"the agent that keeps the store ({self._address}) cannot be reached: {why}"
            self._on_reply(PeerReply(process=process, reply=StoreReply(id=request, error=error)))
