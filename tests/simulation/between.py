"""Collectives between steps, as in `onward/train/between.py`: those who have the results tell those who have not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.core.facts import Scope

from .fabric import mix
from .unwinding import Thread, Unwound

if TYPE_CHECKING:
    from .ranks import RankProcess


class Between:
    """The results since the last commit."""

    def __init__(self, process: RankProcess) -> None:
        self._p = process
        self.results: list[int] = []
        self._of = 0  # the step that they came after
        self._replay: list[int] = []

    def clear(self) -> None:
        self.results, self._replay = [], []

    def take(self, step: int, results: tuple[int, ...]) -> None:
        """What somebody else has had after this step."""
        self.results, self._of = list(results), step

    def current(self) -> list[int]:
        """Those that came after the step at which this process stands."""
        return self.results if self._of == self._p.tx.step else []

    def collective(self) -> Thread:
        """A collective between steps, or after the last: not unwound but run again, or told by those who have it."""
        p = self._p
        while not self._replay:
            try:
                value = mix(p.tx.shared, len(self.results))
                if p.world.scenario.elastic:
                    value = p.block.of_my_lanes(lambda _, value=value: value)
                result = yield from p.block.collective(value)
            except Unwound:
                p.block.note_break()
                yield from p.fence.recover(False)
                p.scope = Scope.OUTSIDE
            else:
                break
        else:
            result = self._replay.pop(0)
        p.world.promises.on_result_between(p, len(self.results), result)
        self.results.append(result)
        self._of = p.tx.step

    def forget_old(self) -> None:
        """This rank may have stood at the gate of the next step: then its results are of a stretch that is over."""
        if self._of != self._p.tx.step:
            self.results = []

    def level(self, generation: int, caught_up: bool) -> Thread:
        """All ranks of a new generation compare how many collectives they have run since the last commit."""
        p = self._p
        self.forget_old()
        mine = -1 if caught_up else len(self.results)
        yield from p.store(generation, "set", f"between/{p.rank}", value=str(mine).encode())
        counts = []
        for r in p.members:
            reply = yield from p.store(generation, "get", f"between/{r}")
            counts.append(int(reply.value))
        known = {r: c for r, c in zip(p.members, counts, strict=True) if c >= 0}
        if not known:
            return
        most, least = max(known.values()), min(known.values())
        if p.rank == min(r for r, c in known.items() if c == most):
            for i in range(least, most):
                yield from p.store(generation, "set", f"result/{i}", value=str(self.results[i]).encode())
        elif mine >= 0:
            self._replay = []
            for i in range(mine, most):
                reply = yield from p.store(generation, "get", f"result/{i}")
                self._replay.append(int(reply.value))
