"""One step: the user's block and what ends it, as in `onward/train/step.py` and `block.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from onward.core.facts import Scope, Stage
from onward.wire.messages import StoreReply

from .fabric import MASK, mix
from .unwinding import Interrupted, ScriptFailed, Thread, Unwound, UserError

if TYPE_CHECKING:
    from .ranks import RankProcess


class Block:
    """Runs a step, and the collectives in it."""

    def __init__(self, process: RankProcess) -> None:
        self._p = process
        self._began_at = 0.0

    def run(self, k: int) -> Thread:
        p = self._p
        w = p.world
        p.tx.begin()
        p.scope = Scope.STEP
        self._began_at = p.page.progress_at = w.now
        p.feed.begun(k)
        try:
            yield from self._body(k)
        except Unwound:
            self.note_break()
        except UserError as e:
            if p.membership.broken:
                self.note_break()
            elif not e.retryable:
                p.failing = True
                p.report(Stage.TRAINING, fault=p.fault("exception", str(e)))
                yield w.lag(0.02)
                raise ScriptFailed from e
            else:
                if e.retryable == "memory":
                    p.tx.damaged()
                p.pending_fault = p.fault("exception", str(e), e.retryable)
        else:
            return (yield from self._end(k))
        return False

    def _body(self, k: int) -> Thread:
        """The user's block: draw, exchange, update, perhaps draw again."""
        p = self._p
        w, s, tx = p.world, p.world.scenario, p.tx
        p.at("begin")
        tx.draw()
        yield w.lag(s.forward_s)
        p.at("forward")
        total = 0
        for i in range(s.collectives):
            if s.elastic:
                value = self.of_my_lanes(lambda lane, i=i: mix(mix(tx.shared, lane), k * 10 + i))
            else:
                value = mix(mix(tx.shared, tx.local), p.rank * 1000 + k * 10 + i)
            total = mix(total, (yield from self.collective(value)))
            p.at("reduced")
        p.at("gate")
        if not tx.gate(p.membership.broken):
            raise Unwound
        before = tx.shared
        tx.half_applied()
        yield w.lag(0.004)
        p.at("optimizer")
        tx.update(before, total)
        if s.late_collective:
            yield from self.collective(k)
        if s.noise:
            p.at("noise")
            tx.noise()

    def of_my_lanes(self, compute: Callable[[int], int]) -> int:
        """What this rank contributes where micro-batches are dealt to those who take part: see `train/batches.py`."""
        p = self._p
        at, n, total = p.members.index(p.rank), len(p.members), p.world.scenario.lanes
        return sum(compute(lane) for lane in range(total * at // n, total * (at + 1) // n)) & MASK

    def _end(self, k: int) -> Thread:
        p = self._p
        if p.membership.broken:
            self.note_break()
            return False
        vote = yield from p.tx.end()
        p.tx.applied()
        p.at("applied")
        if p.tx.careful and not (yield from self._meet(k, vote)):
            return p.tx.step == k + 1
        self._committed(k)
        return True

    def _meet(self, k: int, vote: int) -> Thread:
        """Wait at the gate until every rank has finished the step. False when the job was interrupted meanwhile."""
        p = self._p
        p.page.gate = True
        try:
            reply = yield from p.ask(p.membership.generation, "arrive", f"step/{k}", patient=True, amount=vote)
            if self._refused(reply):
                raise Interrupted
        except Interrupted:
            p.page.gate = False
            p.scope = Scope.BETWEEN
            yield from p.fence.recover(False)
            if p.tx.step == k + 1:
                self._committed(k)
            return False
        p.at("meet")
        p.page.gate = False
        p.tx.settled(reply.number)
        return True

    def _refused(self, reply: StoreReply) -> bool:
        """The agent may have heard of the next generation before our question came: then the gate is not open."""
        return bool(reply.error)

    def _committed(self, k: int) -> None:
        p = self._p
        p.world.promises.on_commit(p, k)
        p.committed = p.passed = k + 1
        p.feed.committed(k)
        p.page.step = p.tx.step
        p.page.step_s = p.world.now - self._began_at
        p.page.progress_at = p.world.now
        p.between.clear()
        p.scope = Scope.OUTSIDE
        if not p.resumed:
            p.resumed = True
            p.report(Stage.TRAINING)
        p.at("committed")

    def note_break(self) -> None:
        p = self._p
        if not p.newer_than(p.membership.generation):
            p.pending_fault = p.fault("exception", "RuntimeError: a collective failed", "communication")

    def collective(self, value: int) -> Thread:
        p = self._p
        if p.membership.failed:
            raise Unwound
        p.at("enter")
        if p.tx.open:
            yield from p.tx.on_collective()
        page = p.page
        page.launched += 1
        page.launched_at = page.progress_at = p.world.now
        op = p.world.fabric.enter(p, value)
        p.at("entered")
        while not op.done:
            yield lambda: op.done
        page.launched_at, page.progress_at = 0.0, p.world.now
        if op.failed:
            raise Unwound
        p.feed.result(op.result)
        if p.tx.open:
            p.tx.begun = p.tx.step  # everybody is in this block, so nobody is in what came before it
        return op.result
