"""The line of succession: at which door to knock for a manager, and for how long. Pure; the simulator drives it too.

The manager that was last in office is looked for first, since its host starts it again. Then the others in line get
their turn, one at a time; between any two of them the old door is tried once more. A short break of one connection must
not send an agent to a manager that will never be in office, while the one that is takes it for lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Patience:
    """In seconds."""

    faithful_s: float = 1.5  # so long the same manager is looked for before the next in line
    silence_s: float = 6.0  # a manager beats every second, of a large job every other
    office_s: float = 2.0  # for one to gather a majority; a little longer than it waits for all to come


class Line:
    """`door` is where to knock now."""

    def __init__(self, first: Sequence[str], patience: Patience, joins: bool = False) -> None:
        self._first = list(first)  # where to begin
        self._joins = joins  # the job begins without us: none of these doors is where it will
        self._known: list[str] = []  # as the last manager told it
        self._patience = patience
        self._turn = 0
        self._since: float | None = None  # how long the last manager has been looked for
        self._own = ""
        self.door = self.home = self._first[0]  # home: where the manager was that was last in office

    @property
    def doors(self) -> list[str]:
        return list(dict.fromkeys([*self._first, *self._known, *([self._own] if self._own else [])]))

    def hosts(self, door: str) -> None:
        """Somebody knocked at our own door, and there is a manager now ("": none any more).

        Who is to join a job may find it there: the others knew the address from whoever had it before us.
        """
        self._own = door if self._joins else ""

    def told(self, managers: Sequence[str], in_office: bool) -> None:
        """The manager behind this door says who comes after it."""
        if in_office:
            self.home, self._turn = self.door, 0
        self._known = list(managers)

    def sent_on(self, now: float, managers: Sequence[str]) -> None:
        """Nothing begins behind this door: the job has begun, behind one of these."""
        self._known, self._turn = list(managers), 0
        self._since = now - self._patience.faithful_s

    def left(self, now: float, heard: bool, nobody_home: bool) -> str:
        """A visit is over. `heard`: of a manager in office; `nobody_home`: even its host is gone."""
        if heard or self._since is None:
            self._since = now
        at_home = self.door == self.home
        if heard or (at_home and now - self._since < self._patience.faithful_s and not nobody_home):
            return self.door
        others = [d for d in self.doors if d != self.home]
        if at_home and others:
            self.door = others[self._turn % len(others)]
            self._turn += 1
        else:
            self.door = self.home
        return self.door

    def wait_s(self, since_s: float, in_office: bool) -> float:
        """How long to go on listening to a manager that was first heard `since_s` ago."""
        starts = not self._known and self.door == self.home and not self._joins  # this is where the job will begin
        if in_office or len(self.doors) == 1 or starts:
            return self._patience.silence_s
        return max(0.0, self._patience.office_s - since_s)
