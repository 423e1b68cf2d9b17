"""Collectives between steps: evaluation, checkpoints, early-stopping votes.

Python cannot run the rest of a loop body again, so these are not unwound. When one fails its rank stands at the fence
right there, and launches it again in the next generation. A rank that is behind, or a replacement that has to run this
part of the script from its start, is told the results that the others already have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onward.errors import StateError
from onward.train.link import Link
from onward.train.operations import SAME_EVERYWHERE
from onward.train.results import fill, keep

LIMIT_BYTES = 64 << 20


class Untold(StateError):
    """A rank has to run code once more, and what it would need for that is lost."""


class BetweenSteps:
    """The collectives since the last commit: what came out, and what is still to be replayed."""

    def __init__(self, link: Link, rank: int, members: Callable[[], tuple[int, ...]]) -> None:
        self._link = link
        self._rank = rank
        self._members = members
        self.on_failure: Callable[[], None] | None = None  # stands at the fence; returns in a new generation
        self._results: list[bytes] = []
        self._bytes = 0
        self._replay: list[bytes] = []
        self._ending = False

    def results(self) -> list[bytes]:
        return list(self._results)

    def adopt(self, results: list[bytes]) -> None:
        """This process stands where another had stood, which had these behind it."""
        self._results, self._bytes, self._replay = results, sum(map(len, results)), []

    @property
    def count(self) -> int:
        return len(self._results)

    def forget(self) -> None:
        """A step committed: nobody will need to run what came before it."""
        if self._results:
            self._results, self._bytes = [], 0
        self._replay = []

    def begin_to_end(self) -> None:
        """All are through the loop, and what was run since the last block: from here on the stretch after it counts."""
        if not self._ending:
            self._ending = True
            self.forget()

    def recover(self) -> None:
        assert self.on_failure is not None
        self.on_failure()

    def record(self, op: str, result: Any) -> None:
        data = b""
        if op in SAME_EVERYWHERE:
            data = keep(op, result)
            self._bytes += len(data)
        self._results.append(data if self._bytes <= LIMIT_BYTES else b"")

    def replay(self, op: str, result: Any) -> bool:
        if not self._replay:
            return False
        data = self._replay.pop(0)
        fill(op, result, data)
        self._results.append(data)
        return True

    def level(self, generation: int, caught_up: bool) -> None:
        """All ranks of a new generation compare how far they are; who is behind is told the results.

        `caught_up` is a rank that has no collectives of this stretch to run: it only listens.
        """
        mine = -1 if caught_up else self.count
        self._link.ask(generation, "set", f"between/{self._rank}", 60.0, value=str(mine).encode())
        counts = {}
        for rank in self._members():
            counts[rank] = int(self._link.ask(generation, "get", f"between/{rank}", 60.0).value)
        known = {r: c for r, c in counts.items() if c >= 0}
        if not known:
            return
        most, least = max(known.values()), min(known.values())
        teller = min(r for r, c in known.items() if c == most)
        if teller == self._rank:
            for i in range(least, most):
                self._link.ask(generation, "set", f"result/{i}", 60.0, value=self._results[i])
        elif mine >= 0:
            have = [self._link.ask(generation, "get", f"result/{i}", 60.0).value for i in range(mine, most)]
            if any(not d for d in have):
                raise Untold(f"what rank {self._rank} was told in a collective between two steps nobody else knows")
            self._replay = have
