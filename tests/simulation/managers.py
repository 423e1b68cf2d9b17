"""A manager's process (`manager/server.py`), and its host's part in it (`agent/helpers.py`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from onward.core.job import Phase
from onward.core.membership import Member
from onward.manager.logic import ManagerLogic
from onward.wire.messages import AgentFacts, Beat, Note, Orders

from .network import Connection

if TYPE_CHECKING:
    from .shells import SimAgent
    from .world import World

TICK_S = 0.05
IDLE_S = 3.0  # nobody has been here for so long: not needed
OVER_S = 0.3
FAREWELL_S = 5.0  # so long a manager outlives its host that has ended well


class SimManager:
    """Its clock is its own: it may run on another machine than the last one."""

    def __init__(self, world: World, host: SimAgent, record: bytes) -> None:
        self.world, self.host = world, host
        self.logic = ManagerLogic(replace(world.settings, seat=host.member.id), record)
        self.alive = True
        self.offset = world.rng.choice((0.0, 0.0, -5000.0, 5000.0))
        self._peers: dict[str, Connection] = {}
        self._here: dict[str, Member] = {}
        self._accepted: list[Connection] = []
        self._idle_since = world.now
        self.decided: tuple[Phase, int] | None = None  # what it was last seen to want
        world.managers.append(self)
        world.after(TICK_S, self._tick)

    def __str__(self) -> str:
        term = self.logic.job.term if self.logic.job is not None else "-"
        return f"manager {self.host.index} (term {term})"

    @property
    def clock(self) -> float:
        return 10_000.0 + self.offset + self.world.now

    @property
    def in_office(self) -> bool:
        """A majority has followed it."""
        return self.alive and self.logic._granted and not self.logic.deposed

    def _tick(self) -> None:
        if not self.alive:
            return
        if self.logic.deposed:
            self.world.note(f"{self} is deposed and ends")
            self.host.hosting.ended(self)
            return
        self._ask_the_kernel()
        self.logic.think(self.clock)
        self.flush()
        if self._peers:
            self._idle_since = self.world.now
        elif self._is_idle(self.world.now - self._idle_since):
            self.world.note(f"{self} has nobody to manage and ends")
            self.host.hosting.ended(self)
            return
        self.world.after(TICK_S, self._tick)

    def _is_idle(self, idle_s: float) -> bool:
        over = self.logic.job is not None and self.logic.job.phase.value in ("Succeeded", "Failed")
        return (over and self.logic.all_know and idle_s > OVER_S) or (idle_s > IDLE_S and self.world.scenario.nodes > 1)

    def _ask_the_kernel(self) -> None:
        if not self.world.scenario.arbiter:
            return
        for m in [*self.logic.members(), *self._here.values()]:
            if m.id not in self._peers and not self.world.by_id[m.id].there:
                self.logic.declare_gone(m.id)
                self._here.pop(m.id, None)

    def accept(self, connection: Connection) -> None:
        connection.manager = self
        self._accepted.append(connection)

    def on_message(self, connection: Connection, message: AgentFacts) -> None:
        if connection.ended:
            return
        if not connection.greeted:
            if not connection.open:
                return  # hung up before it was read: a server that reads it late finds the end of the connection next
            connection.greeted = True
            self.logic.forget(message.agent.id)
            self._peers[message.agent.id] = connection
            self._here[message.agent.id] = message.agent
        self.logic.on_facts(message, self.clock)
        self.flush()

    def on_hung_up(self, connection: Connection) -> None:
        agent = connection.agent.member.id
        if self._peers.get(agent) is connection:
            del self._peers[agent]
            self.logic.hung_up(agent)

    def flush(self) -> None:
        w, logic = self.world, self.logic
        if logic.changed_job:
            logic.changed_job = False
            assert logic.job is not None
            self.host.hosting.journal.append(logic.record())
            fault = w.at_record()
            if fault is not None:
                return self.host.hosting.crash(fault.journal)
            w.promises.on_any_job(self, logic.job)
            if w.manager is self:
                w.promises.on_job(self, logic.job)
                w.job_changed(logic.job)
        out, logic.out = logic.out, []
        for agent, message in out:
            if w.trace is not None and isinstance(message, Note):
                w.note(f"{self}: {message.text}")
            if not isinstance(message, (Orders, Beat)):
                continue
            for name, connection in list(self._peers.items()):
                if (agent is None or name == agent) and connection.open:
                    connection.send(False, message)

    def die(self) -> None:
        if self.alive:
            self.alive = False
            self.world.managers.remove(self)
            self._hang_up()

    def retire(self) -> None:
        """Replaced while it still lives and thinks: what it had sent may arrive late."""
        self._hang_up()
        self.world.after(1.0, self.die)

    def _hang_up(self) -> None:
        for connection in self._accepted:
            if connection.open:
                connection.agent.office.on_closed(connection)
        self._accepted.clear()


class Hosting:
    """The door of an agent: a manager is started behind it when somebody knocks, and again when it dies."""

    def __init__(self, agent: SimAgent) -> None:
        self.agent, self.world = agent, agent.world
        self.manager: SimManager | None = None
        self.journal: list[bytes] = []
        self._knocked: list[Connection] = []
        self._starting = False
        self.last: SimManager | None = None  # stays for a while after its host has ended well

    def knock(self, connection: Connection) -> None:
        if self.manager is not None or (self.last is not None and self.last.alive):
            self._welcome(connection)
        else:
            self._knocked.append(connection)
            self.start_soon("kept", 0.1)

    def _welcome(self, connection: Connection) -> None:
        manager = self.manager or self.last
        assert manager is not None
        manager.accept(connection)
        connection.agent.office.on_accepted(connection)

    def start_soon(self, journal: str, within_s: float = 0.3) -> None:
        if not self._starting and self.agent.running:
            self._starting = True
            self.world.after(self.world.lag(within_s), self._start, journal)

    def _start(self, journal: str) -> None:
        self._starting = False
        if not self.agent.running or self.manager is not None:
            return
        record = b""
        if journal == "kept" and self.journal:
            record = self.journal[-1]
        elif journal == "torn" and len(self.journal) > 1:
            record = self.journal[-2]
            self.journal.pop()
        elif journal != "kept":
            self.journal.clear()
        self.world.note(f"manager {self.agent.index} starts, journal {journal}")
        self.manager = SimManager(self.world, self.agent, record)
        waiting, self._knocked = self._knocked, []
        for connection in waiting:
            if connection.open:
                self._welcome(connection)

    def crash(self, journal: str, alive: bool = False) -> None:
        """The manager's process dies, or is replaced while it lives; another is started."""
        old, self.manager = self.manager, None
        if old is not None:
            old.retire() if alive else old.die()
        self.start_soon(journal)

    def ended(self, manager: SimManager) -> None:
        """It has ended by itself: the next one is started by a knock."""
        if self.manager is manager:
            self.manager = None
        manager.die()
        if self.world.scenario.nodes == 1:
            self.start_soon("kept")

    def close(self, farewell: bool) -> None:
        """The agent is gone. After a good end its manager stays a while, to tell the others."""
        manager, self.manager = self.manager, None
        if manager is not None:
            if farewell and self.world.scenario.nodes > 1:
                self.last = manager
                self.world.after(FAREWELL_S, manager.die)
            else:
                manager.die()
        waiting, self._knocked = self._knocked, []
        for connection in waiting:
            if connection.open:
                connection.agent.office.on_closed(connection)
