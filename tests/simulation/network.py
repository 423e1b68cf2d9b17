"""Who reaches whom. A cut stands between some agents and all others for a while; nobody dies of it.

A silent cut loses nothing that a connection was given: it arrives when the cut heals, as with TCP. Any other resets the
connections that cross it. What an agent says to itself, and to a manager that it hosts, crosses no network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onward.wire.messages import Orders

if TYPE_CHECKING:
    from .managers import SimManager
    from .shells import SimAgent
    from .world import World


@dataclass(frozen=True)
class Cut:
    side: frozenset[int]  # agents on the one side; all others are on the other
    links: str  # all, managers (agents and managers) or peers (agents among themselves)
    until: float


class Network:
    """The cuts that stand now."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._cuts: list[Cut] = []

    def cut(self, side: frozenset[int], links: str, for_s: float) -> Cut:
        self._cuts.append(Cut(side, links, self._world.now + for_s))
        return self._cuts[-1]

    @property
    def any(self) -> bool:
        return bool(self._cuts)

    def opens_at(self, one: int, other: int, links: str) -> float:
        """When the two can talk: now, or when the last cut between them heals."""
        at = now = self._world.now
        for c in self._cuts:
            if c.until > now and c.links in ("all", links) and (one in c.side) != (other in c.side):
                at = max(at, c.until)
        return at

    def reaches(self, one: int, other: int, links: str) -> bool:
        return not self._cuts or self.opens_at(one, other, links) <= self._world.now

    def crossed(self, one: int, other: int) -> bool:
        """A cut stands between them, of any kind."""
        return not all(self.reaches(one, other, links) for links in ("managers", "peers", "ranks"))


class Connection:
    """One connection of an agent to a manager. In order and reliable, unless the scenario is hostile."""

    def __init__(self, world: World, agent: SimAgent, host: SimAgent) -> None:
        self.world, self.agent, self.host = world, agent, host
        self.manager: SimManager | None = None  # nobody has accepted it yet
        self.open = True
        self.silent = False
        self.greeted = self.ended = False  # as the manager knows it
        self._free_at = [0.0, 0.0]  # when the last message of each direction arrives

    def send(self, to_manager: bool, message: Any) -> None:
        w, s = self.world, self.world.scenario
        if self.silent or (s.loss and w.rng.random() < s.loss):
            w.note(f"lost: {type(message).__name__} {'from' if to_manager else 'to'} agent {self.agent.index}")
            return
        for _ in range(2 if s.duplicates and w.rng.random() < s.duplicates else 1):
            at = w.now + w.lag(0.04 if s.slow_network else 0.004)
            if not s.reorder:
                at = self._free_at[to_manager] = max(at, self._free_at[to_manager])
            w.after(at - w.now, self._deliver, to_manager, message)

    def _deliver(self, to_manager: bool, message: Any) -> None:
        w = self.world
        at = w.network.opens_at(self.agent.index, self.host.index, "managers")
        if at > w.now:
            w.after(at - w.now, self._deliver, to_manager, message)
        elif to_manager:
            if self.manager is not None and self.manager.alive:
                self.manager.on_message(self, message)
        elif self.agent.office.connection is self or self._is_past(message):
            self.agent.on_manager(message)

    def _is_past(self, message: Any) -> bool:
        """An agent reads one connection at a time. What comes late, from a manager before this one, must be refused."""
        seen = self.agent.logic.orders
        if seen is None or not isinstance(message, Orders):
            return False
        return (message.term, message.version) < (seen.term, seen.version)

    def close(self) -> None:
        """By either end. The manager reads what was sent before, then the end; through a silent cut nothing."""
        if self.open:
            self.open = False
            at = max(self.world.now, self._free_at[True]) + self.world.lag(0.004)
            self.world.after(at - self.world.now, self._end)

    def _end(self) -> None:
        at = self.world.network.opens_at(self.agent.index, self.host.index, "managers")
        if at > self.world.now:
            self.world.after(at - self.world.now, self._end)
        elif not self.ended:
            self.ended = True
            if self.manager is not None and self.manager.alive:
                self.manager.on_hung_up(self)

    def reset(self) -> None:
        """The manager's end of it, by a cut that resets connections."""
        if not self.ended:
            self.ended = True
            if self.manager is not None and self.manager.alive:
                self.manager.on_hung_up(self)
