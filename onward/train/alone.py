"""Blocks that a rank runs alone, for what running them leaves behind; whatever they compute is overwritten."""

from __future__ import annotations

from collections.abc import Generator

from onward.core.facts import Scope
from onward.log import get_logger
from onward.train.block import Blocks
from onward.train.fence import Fence
from onward.train.rank import Rank
from onward.train.step import Step
from onward.wire.messages import RankOrder

log = get_logger("onward.train")
REHEARSALS = 2  # DDP settles its bucket layout in the first backward pass and uses it from the second on


class Alone:
    """Rehearsals, and ghosts of steps that the others have behind them."""

    def __init__(self, rank: Rank, fence: Fence, blocks: Blocks) -> None:
        self._rank = rank
        self._fence = fence
        self._blocks = blocks
        self.rehearsed = False
        self._owed = 0  # a step that it was given in a try that failed: the code before it is still to be run

    def rehearse(self, n: int, at: int = 0) -> Generator[Step, None, None]:
        """Run the block alone, so that what is built in the first steps (buckets, kernels, threads) is there.

        It reads as the last step that others are known to have gone on from: who goes on at step `at`, or has been
        seen at one further on, has done the one before it, and had not left the loop at the one before that.
        """
        rank = self._rank
        was_alone, was_scope = rank.groups.alone, rank.scope
        rank.groups.alone, rank.scope = True, Scope.BETWEEN
        try:
            for _ in range(REHEARSALS):
                index = max(max(rank.link.welcome.step, at) - 2, 0)
                step = Step(self._blocks, min(index, max(n - 1, 0)), rehearsal=True)
                yield step
                if step.error:
                    log.warning("rank %d: the rehearsal of a step failed (%s)", rank.index, step.error)
                    break
            rank.protected.clear_grads()
            self.rehearsed = True
        finally:
            rank.groups.alone, rank.scope = was_alone, was_scope

    def arrive_by_ghost(self, order: RankOrder) -> Generator[Step, None, bool]:
        """Enter; where the rank had not got past its last step, its block is run once more for show.

        The code after the block of step T-1 (a log line, an evaluation) has not been run by this rank, and Python can
        reach it only through the block. So the block runs alone, its effects are overwritten by the state of T, and
        the step then reads as committed, as it is.
        """
        rank, form = self._rank, order.form
        assert form is not None
        if not rank.is_behind(form, self._owed):
            return self._fence.enter(order)
        rank.between.forget()
        self._owed = form.step
        ghost = Step(self._blocks, form.step - 1, ghost=order)
        yield ghost
        rank.groups.alone = False
        if ghost.committed:
            self._owed = 0
        elif rank.tx.clean and rank.tx.step == form.step:
            self._was_for_show(form.step)
        return ghost.committed

    def _was_for_show(self, step: int) -> None:
        """It was given the state of `step`, and then the others stood still again: the code after the block that has
        run since does not count, and runs again.
        """
        if self._rank.protected.can_reach_top:
            self._rank.protected.reach_top(step)
        else:
            self._rank.tx.clean = False  # it is given the state once more
