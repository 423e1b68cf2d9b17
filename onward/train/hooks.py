"""What is done when torch does something: launches a collective, ends one, or is about to change the parameters."""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from onward.core.facts import Scope
from onward.errors import Unwind
from onward.log import get_logger
from onward.train import wrappers
from onward.train.generation import Generation
from onward.train.group import Group
from onward.train.rank import Rank
from onward.train.recorder import Recorder
from onward.wire.messages import RankOrder

log = get_logger("onward.train")


class Hooks:
    """Hung into the groups of `rank`, its link, and all optimizers."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._groups, self._tx, self._page = rank.groups, rank.tx, rank.page
        self._recorder = Recorder(rank.link, rank.link.welcome.log, rank.spare)
        self._groups.before_launch = self._before_launch
        self._groups.on_complete = self._on_complete
        self._groups.on_unwind = self._on_unwind
        register_optimizer_step_pre_hook(self._before_optimizer)
        rank.protected.buckets.watch()
        wrappers.watch()
        rank.protected.buckets.alone = lambda: self._groups.alone and rank.in_loop
        rank.protected.buckets.on_first_use = self._tx.mind

    def _before_launch(self, group: Group, op: str, result: Any) -> Any:
        over_world = group.over_world
        begun = self._rank.begun
        if self._groups.alone:
            return self._recorder.replay(op, result) if not begun else None
        self._rank.injector.at("collective", self._tx.step)
        if self._groups.skip_next:
            return None
        if self._tx.open:
            self._tx.on_collective(op, over_world)
        if over_world:
            self._page.set("launched", self._page.get("launched") + 1)
        if not self._page.get("launched_ns"):
            self._page.touch("launched_ns")
        self._page.touch("progress_ns")
        return self._recorder.note(op) if not begun else None

    def _on_complete(self, generation: Generation, oldest: float) -> None:
        self._page.set("launched_ns", int(oldest * 1e9))
        self._page.touch("progress_ns")

    def _before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._tx.open:
            return
        self._tx.updates(optimizer)
        if self._groups.alone:
            return
        self._name_if_forgotten(optimizer)
        self._groups.waits.surfaced()
        if not self._tx.gate():
            raise Unwind(self._groups.generation.failed)
        self._rank.injector.at("optimizer", self._tx.step)

    def _name_if_forgotten(self, optimizer: Any) -> None:
        """One that keeps something from step to step, which nobody else would be given."""
        if optimizer.state and "optimizer" not in self._tx.warned and self._rank.protected.is_foreign(optimizer):
            self._tx.warned.add("optimizer")
            log.warning(
                "rank %d: an optimizer (%s) that is not protected keeps state: the replacement of a rank that dies "
                "will have none of it, and the result will not be that of a run without faults. Give it to run.protect",
                self._rank.index,
                type(optimizer).__name__,
            )

    def _on_unwind(self, why: str) -> None:
        if self._rank.scope is Scope.SETUP or (self._rank.scope is Scope.OUTSIDE and self._groups.outside is None):
            self._rank.fail_outside(why)

    def on_pause(self, order: RankOrder) -> None:
        """In the link thread: a newer generation is wanted, so nobody may go on waiting in this one."""
        if order.generation > self._rank.generation:
            self._groups.generation.abort(order.why or "the job is paused")
