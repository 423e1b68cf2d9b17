"""The life of a stand-in: parked beside the job, perhaps following one of its ranks, until there is a place for it."""

from __future__ import annotations

from collections.abc import Generator

from onward.core.facts import Stage
from onward.title import take_place
from onward.train.alone import Alone
from onward.train.block import Blocks
from onward.train.rank import Rank
from onward.train.step import Step
from onward.wire import memory
from onward.wire.messages import RankOrder


class StandIn:
    """What the loop does in a process that was started as a spare, before its first own step."""

    def __init__(self, rank: Rank, blocks: Blocks, alone: Alone) -> None:
        self._rank = rank
        self._blocks = blocks
        self._alone = alone

    def park(self, n: int) -> Generator[Step, None, None]:
        """Wait, alone, until there is a place for this process; then take it over."""
        rank = self._rank
        rank.page.set("section", 1)
        rank.groups.warm()
        if rank.link.welcome.step >= 2:
            yield from self._alone.rehearse(n)
            rank.pages.settle(rank.protected.tensors)
        rank.report(Stage.PARKED, generation=0)
        while True:
            order = rank.link.wait_order(
                lambda o: o.want == "form" or rank.following.concerns(o) or rank.ahead.concerns(o)
            )
            assert order is not None
            if order.want != "form":
                if rank.ahead.mind(order):
                    rank.report(Stage.PARKED, generation=rank.following.claimed)
                if rank.following.concerns(order):
                    yield from self._follow(n, order)
                continue
            assert order.form is not None
            if order.form.step >= 1 and not self._alone.rehearsed:
                yield from self._alone.rehearse(n)
            entered = yield from self._alone.arrive_by_ghost(order)
            if entered:
                break
            if rank.holds:  # what it has followed to: perhaps the only copy, so it comes to the fence as any rank does
                take_place()
                memory.stay()
                rank.spare, rank.begun = False, True
                break
            # Also after it had formed: all it holds can be given again, so it does not come to the fence.
            fault, rank.pending_fault = rank.pending_fault, None
            rank.report(Stage.PARKED, generation=0, fault=fault)
        rank.page.set("section", 0)

    def _follow(self, n: int, order: RankOrder) -> Generator[Step, None, None]:
        """Stay beside the rank whose place this process is to take, until it stands at the fence."""
        rank = self._rank
        if not self._alone.rehearsed:
            yield from self._alone.rehearse(n, at=1)
        told = rank.following
        began = told.begin(order, rank.identity, rank.index, self._is_wanted)
        while began:
            step = told.next_step()
            if step is None or step >= n:
                break
            yield Step(self._blocks, step, following=told)
            connected = rank.ahead.mind(rank.link.order)
            if told.says_so() or connected:
                rank.report(Stage.PARKED, generation=0)
        rank.groups.alone = True
        generation = told.end()
        rank.holds = bool(generation)
        rank.between.adopt(told.between if generation else [])
        rank.report(Stage.PARKED, generation=generation)

    def _is_wanted(self) -> bool:
        """A place is free: nobody waits for what this process does beside the others."""
        order = self._rank.link.order
        return order is not None and order.want == "form"
