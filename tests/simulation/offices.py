"""`agent/office.py` over the simulated network: one connection to a manager, and where to look when it breaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from onward.agent.line import Line, Patience
from onward.wire.messages import Beat, Orders

from .network import Connection

if TYPE_CHECKING:
    from .shells import SimAgent

AGAIN_S = 0.02
# Shorter than in production, in the same order: what they are compared with is shorter here too.
CONNECT_S = 0.3
GREETING_S = 1.0
PATIENCE = Patience(faithful_s=0.6, silence_s=1.6, office_s=1.7)


class SimOffice:
    """Looks for a manager at one door after the other."""

    def __init__(self, agent: SimAgent, doors: Sequence[str]) -> None:
        self.agent, self.world = agent, agent.world
        self.connection: Connection | None = None
        self._line = Line(doors, PATIENCE, joins=bool(agent.member.pod) and agent.member.standby)
        self._in_office = self._heard = self._nobody_home = False
        self._came = self._heard_at = 0.0
        self._cut_until = self._lost_at = 0.0

    def begin(self) -> None:
        self._lost_at = self.world.now
        self._visit()

    def _visit(self) -> None:
        w, me = self.world, self.agent
        if not me.running:
            return
        self._in_office = self._heard = self._nobody_home = False
        host = next(a for a in w.agents if a.member.manager == self._line.door)
        if w.now < self._cut_until or not w.network.reaches(me.index, host.index, "managers"):
            within_s = AGAIN_S if w.now < self._cut_until else CONNECT_S
            w.after(within_s, self._again, False)
        elif not host.there:
            self._nobody_home = True
            w.after(w.lag(0.004), self._again, False)
        else:
            self.connection = connection = Connection(w, me, host)
            w.after(GREETING_S, self._not_greeted, connection)
            host.hosting.knock(connection)

    def _again(self, heard: bool) -> None:
        """What follows a visit: the same door, or the next one."""
        if self.agent.running:
            self._line.left(self.world.now, heard, self._nobody_home)
            self.world.after(AGAIN_S, self._visit)

    def on_accepted(self, connection: Connection) -> None:
        if self.connection is connection:
            self._came = self._heard_at = self.world.now
            self.agent.send_facts()

    def _not_greeted(self, connection: Connection) -> None:
        if connection.manager is None:
            self.on_closed(connection)

    def on_closed(self, connection: Connection) -> None:
        """From either side."""
        connection.close()
        if self.connection is connection:
            self.connection = None
            if self._in_office:
                self._lost_at = self.world.now
            self._again(self._heard)

    def hang_up(self) -> None:
        if self.connection is not None:
            self.on_closed(self.connection)

    def leave(self) -> None:
        """The agent is gone."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    @property
    def lonely_s(self) -> float:
        there = self._in_office and self.connection is not None
        return 0.0 if there else self.world.now - self._lost_at

    def on_message(self, message: Any) -> None:
        self._heard_at = self.world.now
        if isinstance(message, Orders):
            self._line.told(message.managers, message.granted)
            if message.granted:
                self._in_office = self._heard = True
        elif isinstance(message, Beat) and not message.term and self._in_office:
            self._in_office = self._heard = False
            self._came = self._lost_at = self.world.now

    def look(self) -> None:
        """Now and then: a manager that says nothing at all is given up."""
        c, w = self.connection, self.world
        if c is None or c.manager is None:
            return
        if w.now - self._heard_at > self._line.wait_s(self._heard_at - self._came, self._in_office):
            w.note(f"agent {self.agent.index} leaves manager {c.host.index}")
            self.hang_up()

    def cut_off(self, for_s: float, silent: bool) -> None:
        """No way to any manager for a while. Silent: the connection looks alive until it is given up."""
        self._cut_until = self.world.now + for_s
        if not silent:
            self.hang_up()
        elif self.connection is not None:
            self.connection.silent = True
            self.world.after(for_s, self._give_up, self.connection)

    def _give_up(self, connection: Connection) -> None:
        if self.connection is connection:
            self.hang_up()
