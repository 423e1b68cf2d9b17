"""The loop over the steps: where it begins, what is looked at between two of them, and how it ends for all ranks."""

from __future__ import annotations

import atexit
import dis
import os
import sys
from collections.abc import Generator
from types import FrameType

from onward.core.facts import Scope, Stage
from onward.errors import Unwind, UsageError
from onward.log import get_logger
from onward.train.alike import Alike
from onward.train.alone import Alone
from onward.train.block import Blocks
from onward.train.fence import Fence
from onward.train.rank import Rank
from onward.train.standin import StandIn
from onward.train.step import Step
from onward.train.telling import Telling
from onward.train.unseen import Unseen

log = get_logger("onward.train")
_POPS = ("POP_TOP", "POP_ITER")  # how Python lets go of the iterator of a `for` that is left by `break` or `return`
_SUSPENDED = ("YIELD_VALUE", "RESUME")  # a generator around ours is being closed itself


def was_broken(frame: FrameType | None) -> bool:
    """Whether the code that let go of the loop did so by itself; an error or an exit stands at another instruction."""
    while frame is not None:
        instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if instruction not in _SUSPENDED:
            return instruction in _POPS
        frame = frame.f_back
    return False


class Loop:
    """What is behind `run.steps(n)`."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._tx, self._link = rank.tx, rank.link
        self._telling = Telling(rank)
        self._fence = Fence(rank, self._telling)
        self._blocks = Blocks(rank, self._fence, self._telling)
        self._alone = Alone(rank, self._fence, self._blocks)
        self._stand_in = StandIn(rank, self._blocks, self._alone)
        self._unseen = Unseen(rank.protected)
        self._alike = Alike(rank.link, rank.protected, rank.index)
        self._prepared = False
        self._pid = os.getpid()
        atexit.register(self._linger)

    def steps(self, n: int) -> Generator[Step, None, None]:
        try:
            yield from self._steps(n)
        except GeneratorExit:
            if was_broken(sys._getframe().f_back):
                self._break_off()
            raise  # perhaps it was an error, which must get out; if the script ends well all the same, see `_linger`
        self._rank.leave_step()

    def _steps(self, n: int) -> Generator[Step, None, None]:
        rank = self._rank
        rank.protected.look_at_wrappers(rank.world_size)
        self._tx.never_light = rank.protected.changes_at_the_end
        rank.stay_in_loop()
        rank.in_loop = True
        if rank.spare:
            yield from self._stand_in.park(n)
        else:
            self._tx.first_publish()
            rank.begun = True
            yield from self._begin_or_load(n)
        rank.page.set("step", self._tx.step)
        rank.feed.start()
        while True:
            rank.stay_in_loop()
            rank.protected.reach_top(self._tx.step)
            if rank.pending_fault is not None or self._link.newer_than(rank.generation):
                yield from self._recover(n)
                rank.protected.reach_top(self._tx.step)
            self._save_if_due()
            self._telling.begin_if_wanted()
            if not rank.incarnation and rank.index == 0:  # one is enough to say it
                for said in self._unseen.look(sys._getframe()):
                    log.warning("rank %d: %s", rank.index, said)
            for name in self._alike.look(self._tx.step, rank.generation, rank.members[0]):
                log.warning(
                    "rank %d: %s is protected as the same on every rank, and is not the same here as on rank %d: a "
                    "replacement would be given another rank's. What differs from rank to rank belongs into "
                    "local={...} of run.protect",
                    rank.index,
                    name,
                    rank.members[0],
                )
            if rank.ahead.mind(self._link.order):
                rank.report(Stage.TRAINING)
            if self._tx.step >= n:
                if self._finish():
                    return
                continue
            step = Step(self._blocks, self._tx.step)
            yield step
            rank.groups.alone = False
            if not step.committed and not self._tx.open and self._tx.step == step.index:
                rank.protected.rewind_small()  # taken back at the gate; the code after the block was for show
            if not step.entered:
                raise UsageError("the body of `for step in run.steps(n)` must run the step: `with step: ...`")

    def _begin_or_load(self, n: int) -> Generator[Step, None, None]:
        """All ranks meet before their first step, so that they begin from the same one."""
        rank = self._rank
        rank.scope = Scope.SETUP  # nothing is held yet that could be redone
        rank.loadable, rank.partly = rank.checkpoints.loadable(), rank.checkpoints.partly()
        rank.report(Stage.READY)
        number = rank.generation
        order = self._link.wait_order(
            lambda o: o.generation > number or (o.want == "run" and o.form is not None and o.form.begin)
        )
        assert order is not None
        if order.generation > number:
            yield from self._recover(n)
        rank.loadable = rank.partly = ()
        rank.groups.as_whole = False
        rank.stay_in_loop()
        if not rank.holds:
            rank.holds = True
            rank.report(Stage.TRAINING)

    def _recover(self, n: int) -> Generator[Step, None, None]:
        """Stand at the fence until the job goes on. Afterwards `tx.step` is the agreed step."""
        # At the top of the loop the code after the last block has been run: a stand-in that goes on from here does not
        # run it again. After a fault another rank may still be in it, and a replacement has to meet it there.
        if self._link.called_softly > self._rank.generation:
            self._rank.local.begun = max(self._rank.local.begun, self._tx.step)
        while True:
            order = self._fence.stand()
            form = order.form
            assert form is not None
            given = form.part in ("receive", "load") and form.step >= 1
            if given and self._tx.step < 1 and not self._alone.rehearsed:
                yield from self._alone.rehearse(n, at=form.step)
            entered = yield from self._alone.arrive_by_ghost(order)
            if entered:
                return

    def _save_if_due(self) -> None:
        """At the top of the loop: the user's code after the last block has been run, so nothing is left out."""
        step, checkpoints = self._tx.step, self._rank.checkpoints
        if step == 1 and not self._prepared:
            self._prepared = True
            checkpoints.prepare()
        if checkpoints.due(step):
            self._tx.republish()
            checkpoints.save(step, self._rank.generation, self._tx.learnt)

    # ------------------------------------------------------------------------------------- the end

    def _finish(self) -> bool:
        """Wait until every rank is through the loop. False when the job needs us again."""
        rank = self._rank
        rank.page.set("section", 1)
        rank.local.begun = self._tx.step
        self._telling.end_of_loop()
        rank.report(Stage.DONE)
        number = rank.generation
        order = self._link.wait_order(lambda o: o.generation > number or o.want in ("finish", "leave"))
        assert order is not None
        rank.page.set("section", 0)
        if order.generation > number:
            return False
        rank.between.begin_to_end()
        self._fence.through = Stage.AFTER
        rank.report(Stage.AFTER)
        return True

    def _break_off(self) -> None:
        """The script has left the loop before its end, by itself."""
        rank = self._rank
        if rank.scope is not Scope.OUTSIDE:
            self._start_again()
        self._telling.end_of_loop()
        rank.broke = True
        self._fence.through = Stage.AFTER
        rank.report(Stage.AFTER)

    def _linger(self) -> None:
        """The script has ended. Stay until those of all ranks have: one that fails now needs the state we hold."""
        rank, raised = self._rank, getattr(sys, "last_value", None)
        if not rank.in_loop or os.getpid() != self._pid:
            return
        if isinstance(raised, Unwind) and rank.scope is not Scope.OUTSIDE:
            self._start_again()  # it had gone on to a collective there
        if raised is not None:
            return
        if self._fence.through is None:
            self._break_off()
        rank.groups.outside = None
        self._fence.through = Stage.LEFT
        rank.report(Stage.LEFT)
        while self._wait_to_leave(rank.generation):
            self._fence.recover_here()

    def _start_again(self) -> None:
        """The script has left a step that does not count, and Python cannot go back: another process must."""
        rank = self._rank
        where = "a rehearsal of a step" if rank.spare else "a step that did not count and had to be run again"
        text = f"the loop was left in {where}: `if step.committed` tells"
        if rank.spare and not rank.incarnation:
            log.info("rank %d: its spare ends: %s", rank.index, text)
        else:
            log.error("rank %d: %s; this process ends, and another one goes on from that step", rank.index, text)
        rank.report(Stage.TRAINING, fault=rank.fault("exception", f"UsageError: {text}"))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    def _wait_to_leave(self, number: int) -> bool:
        """False when all have ended; True when the job needs us again."""
        order = self._link.wait_order(lambda o: o.generation > number or o.want in ("leave", "stop"))
        return order is not None and order.generation > number
