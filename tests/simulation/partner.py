"""The agent of another node that keeps a copy of a rank's local state, as in `onward/train/partner.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.wire.peers import KeepSlot

from .unwinding import Thread

if TYPE_CHECKING:
    from .ranks import RankProcess
    from .shells import SimAgent

PARTNER_S = 0.5  # how long an agent that keeps our local state is waited for


class Partner:
    """Chosen anew in each generation."""

    def __init__(self, process: RankProcess) -> None:
        self._p = process
        self.keeper: SimAgent | None = None  # as far as we know; None when it was once not there
        self._generation = 0

    def choose(self, peer: str, generation: int) -> None:
        self.keeper = next((a for a in self._p.world.agents if peer and a.member.peer == peer), None)
        self._generation = generation

    def share(self, step: int) -> Thread:
        """Whoever keeps our copy from now on may be another than before."""
        kept, value = self._p.tx.slots[step % 2]
        if kept == step:
            yield from self.keep(step, value)

    def keep(self, step: int, local: int) -> Thread:
        """Returns when the copy is safe, or when there is nobody to keep it."""
        p = self._p
        w, keeper = p.world, self.keeper
        if keeper is None:
            return
        message = KeepSlot(
            attempt=p.attempt,
            rank=p.rank,
            generation=self._generation,
            index=step % 2,
            step=step,
            data=f"{step} {local}".encode(),
        )
        if not w.network.reaches(p.agent.index, keeper.index, "peers"):
            yield PARTNER_S
            self.keeper = None
            return
        yield w.lag(0.002)
        p.at("keeping")
        if keeper.running:
            keeper.keep_for(message)
            yield w.lag(0.002)
        if not keeper.running:
            self.keeper = None
