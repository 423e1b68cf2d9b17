"""The manager as a process: connections, a clock and a journal around `ManagerLogic`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from onward.core.membership import ALL_VOTE, Member, misfit
from onward.errors import WireError
from onward.log import get_logger
from onward.manager.cluster import ClusterDesk
from onward.manager.journal import Journal
from onward.manager.logic import ManagerLogic
from onward.manager.settings import ManagerSettings
from onward.wire.connect import Listener
from onward.wire.frames import accept_peer, decode, pack, read_frame
from onward.wire.identity import Identity
from onward.wire.kernel import is_dead
from onward.wire.messages import (
    AgentFacts,
    ClusterFacts,
    DieAfter,
    Elsewhere,
    FaultRequest,
    Note,
    Refused,
    encoder,
    from_agent,
)

log = get_logger("onward.manager")
GREETING_S = 5.0
REFUSALS_TOLD = 50  # one by one; then one of so many
TICK_S = 0.05
LONGEST_REST_S = 0.1
LONGEST_TICK_S = 0.5  # of a job so large that a look at all of it takes long
MANY = 2000  # agents: so many more, and what they have brought is set aside
OVER_S = 0.3  # the job has ended and nobody is here any more


class ManagerServer:
    """Serves the agents of one job until the job has ended or everybody is gone."""

    def __init__(self, settings: ManagerSettings, identity: Identity, journal: Path | None) -> None:
        self._journal = Journal(journal) if journal is not None else None
        self._logic = ManagerLogic(settings, self._journal.last if self._journal else b"")
        self._identity = identity
        self._peers: dict[str, asyncio.StreamWriter] = {}
        self._here: dict[str, Member] = {}
        self._software = ("", "")  # of the first agent that came, and its name
        self._told_unlike: set[str] = set()
        self._in_pods: dict[str, Member] = {}  # uid of a pod -> the agent that lives in it now
        self._desk = ClusterDesk()
        self._operators: set[asyncio.StreamWriter] = set()
        self._came = 0
        self._idle_since = time.monotonic()
        self._fatal: DieAfter | None = None  # on purpose
        self.refused = 0
        self.operators = 0  # that have spoken to it, one after the other
        self._waking = False
        self._took_s = 0.0
        self._rested_at = 0.0

    @property
    def phase(self) -> str:
        """Where the job stands; empty until all agents have been here."""
        return self._logic.job.phase.value if self._logic.job is not None else ""

    @property
    def stepped_down(self) -> bool:
        """Somebody else is in office, or may be."""
        return self._logic.deposed

    @property
    def connected(self) -> int:
        return len(self._peers)

    async def serve(self, sock: socket.socket, idle_s: float) -> None:
        """Until nobody has been here for `idle_s`, the job has ended and everybody left, or another is in office."""
        server = Listener(sock, self._identity, self._on_connection, GREETING_S, self._refuse)
        try:
            await self._in_office(idle_s)
            self._flush()
        finally:
            server.close()
            for writer in [*self._peers.values(), *self._operators]:
                writer.close()  # or whoever was let in before would be answered still

    async def _in_office(self, idle_s: float) -> None:
        while not self._logic.deposed:
            longest_s = LONGEST_TICK_S if self.connected > ALL_VOTE else 2 * self._took_s
            await asyncio.sleep(max(TICK_S, min(longest_s, 10 * self._took_s)))
            self._ask_who_lives()
            self._think()
            if self._peers:
                self._idle_since = time.monotonic()
                continue
            idle = time.monotonic() - self._idle_since
            over = self.phase in ("Succeeded", "Failed") and self._logic.all_know
            if idle > idle_s or (idle > OVER_S and over):
                return

    def _wake(self) -> None:
        """Think, once, about all that is heard together; and leave time to hear more."""
        if not self._waking:
            self._waking = True
            loop = asyncio.get_running_loop()
            rest_s = self._rested_at - time.monotonic()
            _ = loop.call_later(rest_s, self._think) if rest_s > 0 else loop.call_soon(self._think)

    def _think(self) -> None:
        began = time.monotonic()
        self._waking = False
        self._logic.think(began)
        self._flush()
        now = time.monotonic()
        self._took_s = now - began
        self._rested_at = now + min(self._took_s, LONGEST_REST_S)

    def _is_gone(self, m: Member) -> bool:
        """By the word of the operator, of whoever lives in its pod now, or of the kernel that we share with it."""
        now = self._in_pods.get(m.pod) if m.pod else None
        if self._desk.is_gone(m) or (now is not None and now.came_after(m)):
            return True
        return m.id not in self._peers and is_dead(m.boot, m.pid, m.born)

    def _ask_who_lives(self) -> None:
        """An agent that is known to be dead need not be waited for."""
        for m in [*self._logic.members(), *self._here.values()]:
            if self._is_gone(m):
                self._logic.declare_gone(m.id)
                self._here.pop(m.id, None)
                if m.id in self._peers:  # its pod was taken away, and it has not noticed yet
                    self._peers.pop(m.id).close()

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        agent = ""
        try:
            await accept_peer(reader, writer, self._identity.token, GREETING_S)
            while True:
                message = decode(from_agent, await read_frame(reader))
                if isinstance(message, ClusterFacts):
                    self._hear_operator(message, writer)
                    continue
                if isinstance(message, Elsewhere):
                    self._logic.on_elsewhere(message)
                    self._flush()
                    return
                if not agent and not isinstance(message, AgentFacts):
                    raise WireError("an agent begins with its facts")
                if isinstance(message, DieAfter):
                    self._fatal = message
                elif isinstance(message, FaultRequest):
                    self._logic.on_fault_request(agent, message, time.monotonic())
                else:
                    agent = agent or self._welcome(message, writer)
                    if self._logic.on_facts(message, time.monotonic(), think=False):
                        self._wake()
                self._flush()
        except WireError as e:
            if not agent and writer not in self._operators:
                self._refuse(str(e))
        finally:
            self._operators.discard(writer)
            if self._peers.get(agent) is writer:
                del self._peers[agent]
                self._logic.hung_up(agent)
            writer.close()

    def _refuse(self, why: str) -> None:
        self.refused += 1
        if self.refused <= REFUSALS_TOLD or self.refused % REFUSALS_TOLD == 0:
            log.warning("a connection was refused: %s%s", why, f" ({self.refused} so far)" if self.refused > 1 else "")

    def _hear_operator(self, message: ClusterFacts, writer: asyncio.StreamWriter) -> None:
        if writer not in self._operators:
            self._operators.add(writer)
            self.operators += 1
            self._desk.forget()
        self._logic.out += [(None, note) for note in self._desk.hear(message)]
        self._ask_who_lives()
        for request in self._desk.notices(self._logic, [m for m in self._here.values() if m.id in self._peers]):
            self._logic.on_fault_request("", request, time.monotonic())
        self._wake()

    def _tell_operators(self) -> None:
        if not self._operators:
            return
        here = [m for m in self._here.values() if m.id in self._peers]
        news = self._desk.news(self._logic, here, time.monotonic())
        if news is not None:
            self._send(self._operators, pack(encoder, news))

    @staticmethod
    def _send(writers: Iterable[asyncio.StreamWriter], data: bytes) -> None:
        for writer in writers:
            with contextlib.suppress(ConnectionError, RuntimeError):
                writer.write(data)

    def _welcome(self, facts: AgentFacts, writer: asyncio.StreamWriter) -> str:
        member, s = facts.agent, self._logic.settings
        if not member.id:
            raise WireError("an agent has an id")
        why = misfit(member, s.nodes, s.world_size // s.nodes, s.job)
        if why:
            writer.write(pack(encoder, Refused(why=why)))
            self._logic.refused(member, why)
            self._flush()
            raise WireError(f"agent {member.name} does not belong here: {why}")
        self._compare(facts.software, member.name)
        self._logic.forget(member.id)
        self._here[member.id] = member
        there = self._in_pods.get(member.pod)
        if member.sole and (there is None or member.came_after(there)):
            self._in_pods[member.pod] = member
        old = self._peers.get(member.id)
        self._peers[member.id] = writer
        if old is not None:
            old.close()
        self._came += 1
        if self._came % MANY == 0:
            _set_aside()
        return member.id

    def _compare(self, software: str, name: str) -> None:
        """Say it, once, when a node runs with other versions than the first. The job goes on."""
        first, there = self._software
        if not first:
            self._software = (software, name)
        elif software and software != first:
            text = f"{name} has {software}; {there} has {first}: the same image on all nodes would compute the same"
            if text not in self._told_unlike:
                self._told_unlike.add(text)
                self._logic.out.append((None, Note(text=text, loud=True)))

    def _die_if_told(self) -> None:
        if self._fatal is None or self._journal is None:
            return
        self._fatal = msgspec.structs.replace(self._fatal, appends=self._fatal.appends - 1)
        if self._fatal.appends <= 0:
            if self._fatal.lose_journal:
                self._journal.path.unlink(missing_ok=True)
            os.kill(os.getpid(), signal.SIGKILL)

    def _flush(self) -> None:
        if self._logic.changed_job and self._journal is not None:
            self._logic.changed_job = False
            if not self._journal.append(self._logic.record()):  # no matter: the agents hold the same record
                log.warning("the journal %s cannot be written; the job goes on without", self._journal.path)
            self._die_if_told()
        out, self._logic.out = self._logic.out, []
        self._post(out)
        self._tell_operators()

    def _post(self, out: Iterable[tuple[str | None, Any]]) -> None:
        """What is said to one agent at one time goes out together: one record of TLS, one call of the kernel."""
        letters: dict[str, list[bytes]] = {}
        for agent, message in out:
            to = self._peers if agent is None else (agent,) if agent in self._peers else ()
            frame = pack(encoder, message) if to else b""
            for peer in to:
                letters.setdefault(peer, []).append(frame)
        for peer, frames in letters.items():
            self._send([self._peers[peer]], b"".join(frames))


def _set_aside() -> None:
    """Have the garbage collector look at what is here now this once, and not again.

    Connections and facts of thousands of agents take it a third of a second, in which nobody is heard. What nobody
    refers to any more is freed all the same.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
