"""The two ends of a `with step:` block: what is made ready before it, and whether what it did counts."""

from __future__ import annotations

import dataclasses
import time
import traceback
from types import TracebackType

from onward.core.facts import Scope, Stage
from onward.devices import classify_error
from onward.errors import Unwind
from onward.log import get_logger
from onward.train.fence import Fence
from onward.train.link import Interrupted
from onward.train.rank import Rank
from onward.train.step import Step
from onward.train.telling import Telling
from onward.train.waits import Processor
from onward.wire.messages import RankOrder

log = get_logger("onward.train")
TRACE_CHARS = 20000  # of a traceback, its end


class Blocks:
    """Called by the steps of one rank as they are entered and left."""

    def __init__(self, rank: Rank, fence: Fence, telling: Telling) -> None:
        self._rank = rank
        self._fence = fence
        self._telling = telling
        self._tx, self._groups, self._local = rank.tx, rank.groups, rank.local
        self._processor = Processor()
        self._at_begin = (0, 0)  # what `_processor` read
        self._started_ns = 0
        self._effort = (0, 0)  # in nanoseconds: all of it, and the part without a processor

    def begin(self, step: Step) -> None:
        self._rank.in_ghost = False
        outside = self._tx.begin()
        self._telling.block_begun(step.index, outside)
        if outside and "outside" not in self._tx.warned:
            self._tx.warned.add("outside")
            log.warning(
                "rank %d: a parameter was changed outside a step; a redo cannot put that back. Move the change into "
                "the `with step:` block",
                self._rank.index,
            )
        withheld = self._rank.protected.withheld
        if withheld and withheld not in self._tx.warned:
            self._tx.warned.add(withheld)
            log.warning(
                "rank %d: %s. While it is there nobody can be given this state and no checkpoint holds it: should a "
                "rank die, all start again. Keep it outside what is protected, or as a number or a text",
                self._rank.index,
                withheld,
            )
        self._rank.scope = Scope.STEP
        self._groups.outside = None
        self._groups.gated = True
        self._local.begun = step.index
        self._groups.waits.begin()
        self._groups.device_time.begin()
        self._at_begin = self._processor.read()
        self._started_ns = time.monotonic_ns()
        self._rank.injector.at("begin", step.index)

    def at_end(self, index: int) -> None:
        """The last moment inside the block: what is injected here is raised as the block's own error."""
        self._rank.injector.at("end", index)

    def end(self, step: Step) -> None:
        """The block ended without an exception."""
        try:
            self._end(step)
        except Unwind:
            self._rank.note_break()
        if not step.committed:
            self._does_not_count()

    def _does_not_count(self) -> None:
        """What the script runs up to the next block is for show: its collectives must not meet the steps of others."""
        self._groups.alone = True

    def _end(self, step: Step) -> None:
        if not self._groups.finish(self._groups.generation):
            step.committed = False
            return self._rank.note_break()
        vote = self._tx.end()
        self._rank.protected.buckets.settle(step.index)
        self._tx.applied()
        self._measure()
        if self._tx.needs_gate and not self._meet(step, vote):
            return None
        step.committed = True
        self._committed(step)
        return None

    def _measure(self) -> None:
        """What this rank did itself in the block. A device works behind our back: there it is known a step later."""
        waits = self._groups.waits
        waits.surfaced()
        ran, queued = (now - then for now, then in zip(self._processor.read(), self._at_begin, strict=True))
        if self._groups.device_backend is not None:
            self._effort = (self._groups.device_time.end(waits.waited_ns), 0)  # nobody else computes on its device
            return
        spent = max(1, ran, time.monotonic_ns() - self._started_ns - waits.waited_ns)
        self._effort = (spent, min(queued, spent - min(ran, spent)))

    def _meet(self, step: Step, vote: int) -> bool:
        """Wait at the gate until every rank has finished the step. False when the job decided to redo it."""
        rank = self._rank
        rank.page.set("gate", 1)
        try:
            reply = rank.link.ask(rank.generation, "arrive", f"step/{step.index}", 1e9, patient=True, amount=vote)
            if reply.error:
                self._groups.generation.abort(reply.error)
                rank.note_break()
                raise Interrupted(reply.error)
        except Interrupted:
            rank.stay_in_loop()
            self._fence.recover_here()
            step.committed = self._tx.step == step.index + 1
            if step.committed:
                self._committed(step)
            return False
        finally:
            rank.page.set("gate", 0)
        self._tx.settled(reply.number)
        return True

    def _committed(self, step: Step) -> None:
        rank, page = self._rank, self._rank.page
        self._tx.counts()
        now = time.monotonic_ns()
        page.set("step_ns", now - self._started_ns)
        page.set("compute_ns", self._effort[0])
        page.set("queued_ns", self._effort[1])
        page.set("step", self._tx.step)
        page.set("own_ns", self._tx.own_ns)
        page.set("progress_ns", now)
        rank.between.forget()
        self._telling.committed(step.index)
        rank.leave_step()
        if rank.resumed:
            rank.pages.settle(rank.protected.tensors)  # not in the first step of a generation: the job recovers
        else:
            rank.resumed = True
            rank.report(Stage.TRAINING)
            self._groups.bury()
        if self._tx.broke_shape:
            rank.pending_fault = rank.fault(
                "shape", "the block changed its shape; all ranks go back to careful steps", retryable="communication"
            )

    def failed(self, error: BaseException, tb: TracebackType | None) -> bool:
        """The block raised. True when the step will be redone, False to let the error out."""
        rank = self._rank
        if isinstance(error, Unwind) or self._groups.generation.broken:
            rank.note_break()
            self._does_not_count()
            return True
        if not isinstance(error, Exception):
            return False
        text, trace = _told(error, tb)
        found = classify_error(type(error).__name__, str(error), rank.link.welcome.retry_on)
        if found is None:
            rank.report(Stage.TRAINING, fault=rank.fault("exception", text, trace))
            return False
        if found.kind == "memory":
            self._tx.damaged()
        rank.pending_fault = rank.fault("exception", text, trace, retryable=found.kind)
        self._does_not_count()
        return True

    # ------------------------------------------------------------------------------------- ghosts (see `alone`)

    def begin_ghost(self, order: RankOrder) -> None:
        self._rank.in_ghost = True
        assert order.form is not None
        if self._tx.clean and self._tx.step in self._local.steps():
            self._tx.keep()  # a rank that fell behind shows the step as it was, its own loss included
        if order.form.part == "keep":
            self._tx.set_aside()
        self._tx.clean = False  # from here on, until it is given the state
        self._groups.alone = True
        self._rank.scope = Scope.STEP

    def end_ghost(self, order: RankOrder) -> bool:
        self._groups.alone = False
        self._rank.stay_in_loop()
        if order.form is not None and order.form.part == "keep":
            self._tx.take_back(order.form.step)
            self._tx.clean = True
        entered = self._fence.enter(order)
        if entered:
            self._rank.leave_step()
        else:
            self._does_not_count()
        return entered

    def is_known(self, order: RankOrder, error: BaseException, tb: TracebackType | None) -> bool:
        """The error that ended the process before this one, at the same step: it is the script's own."""
        form = order.form
        assert form is not None
        text, trace = _told(error, tb)
        if text != form.error:
            return False
        fault = dataclasses.replace(self._rank.fault("exception", text, trace), step=form.step - 1)
        self._rank.report(Stage.TRAINING, fault=fault)
        return True


def _told(error: BaseException, tb: TracebackType | None) -> tuple[str, str]:
    """An error in one line, and with its traceback."""
    kind = type(error)
    return f"{kind.__name__}: {error}", "".join(traceback.format_exception(kind, error, tb))[-TRACE_CHARS:]
