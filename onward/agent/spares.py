"""When to build a spare, and for which rank: one at a time, and not while the job is busy recovering."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from onward.agent.facts import Process

SPARE_TRIES = 3
CALM_STEPS = 3  # of every rank in a generation before a spare is built: it takes the cores and memory of the ranks


class Spares:
    """`kind`: none, one or each."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._tries: dict[int, int] = {}  # rank -> spares that did not come up
        self._calm_from = (-1, 0)  # (generation, the furthest step when it was first seen running)

    def forget(self) -> None:
        """The ranks start again, or are others."""
        self._tries.clear()

    def parked(self, rank: int) -> None:
        """A spare of this rank has come up."""
        self._tries[rank] = 0

    def wanted(
        self,
        generation: int,
        processes: Mapping[int, Process],
        current: Mapping[int, int],
        room: Callable[[], bool],
    ) -> int | None:
        """The rank to start a spare for now. `current`: rank -> process."""
        alive = [p for p in processes.values() if p.spare and p.alive]
        if self._kind == "none" or any(not p.parked for p in alive):
            return None
        have = {p.rank for p in alive}
        if (self._kind == "one" and have) or not self._calm(generation, processes, current):
            return None
        begun = [r for r, n in sorted(current.items()) if _has_begun(processes[n])]
        return self._next([r for r in begun if r not in have], room)

    def wanted_ahead(
        self, ranks: Sequence[int], processes: Mapping[int, Process], room: Callable[[], bool], at_once: int
    ) -> int | None:
        """The same, where this node stands by, and `ranks` are those of places that it may have to take.

        Nobody trains here who would be held up: so many come up at once.
        """
        alive = [p for p in processes.values() if p.spare and p.alive]
        coming = sum(not p.parked for p in alive)
        if self._kind == "none" or coming >= at_once or (self._kind == "one" and alive):
            return None
        have = {p.rank for p in alive}
        return self._next([r for r in ranks if r not in have], room)

    def _next(self, ranks: Sequence[int], room: Callable[[], bool]) -> int | None:
        for rank in ranks:
            if self._tries.get(rank, 0) < SPARE_TRIES and room():
                self._tries[rank] = self._tries.get(rank, 0) + 1
                return rank
        return None

    def _calm(self, generation: int, processes: Mapping[int, Process], current: Mapping[int, int]) -> bool:
        steps = [processes[n].progress.step for n in current.values()]
        if self._calm_from[0] != generation:
            self._calm_from = (generation, max(steps, default=-1))
        return min(steps, default=-1) >= self._calm_from[1] + CALM_STEPS


def _has_begun(p: Process) -> bool:
    return p.alive and p.report is not None and p.report.resumed
