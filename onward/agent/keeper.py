"""What an agent keeps for the ranks of another node: their local state, and the log of their set-up.

A node can vanish with all its memory. What only its ranks knew is then here; shared state comes from any replica.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from onward.wire.peers import KeepLog, KeepSlot, Kept


@dataclass
class _Rank:
    attempt: int
    generation: int = 0
    slots: dict[int, tuple[int, bytes]] = field(default_factory=dict)  # index -> (step, content)
    log: dict[int, bytes] = field(default_factory=dict)


class Keeper:
    """Pure memory: the latest attempt of each rank, and of it the last two steps."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}

    def _of(self, rank: int, attempt: int) -> _Rank | None:
        """Where to write; None when the sender is of the past."""
        r = self._ranks.get(rank)
        if r is None or r.attempt < attempt:
            r = self._ranks[rank] = _Rank(attempt)
        return r if r.attempt == attempt else None

    def keep_slot(self, m: KeepSlot) -> bool:
        """False when the sender's generation is over: nothing of it may replace what is newer."""
        r = self._of(m.rank, m.attempt)
        if r is None or m.generation < r.generation:
            return False
        r.generation = m.generation
        r.slots[m.index] = (m.step, m.data)
        return True

    def keep_log(self, m: KeepLog) -> None:
        r = self._of(m.rank, m.attempt)
        if r is not None:
            r.log[m.index] = m.data

    def steps(self, attempt: int) -> dict[int, list[int]]:
        """rank -> steps whose local state is here, of this attempt: what was kept in another is of another history."""
        here = {rank: r for rank, r in self._ranks.items() if r.slots and r.attempt == attempt}
        return {rank: sorted(step for step, _ in r.slots.values()) for rank, r in here.items()}

    def of(self, rank: int, attempt: int) -> Kept:
        r = self._ranks.get(rank)
        if r is None or r.attempt != attempt:
            return Kept(attempt=attempt, rank=rank)
        log = [r.log.get(i, b"") for i in range(max(r.log, default=-1) + 1)]
        return Kept(attempt=attempt, rank=rank, slots={i: data for i, (_, data) in r.slots.items()}, log=log)
