"""The user's script and the loop around it, as in `onward/train/loop.py`: what the main thread runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.core.facts import Scope, Stage
from onward.wire.messages import Copied, Hello, RankOrder, Recorded

from .fabric import mix
from .following import Ended
from .unwinding import Interrupted, Killed, LeftLoop, NotJoined, ScriptFailed, Thread, Unwound

if TYPE_CHECKING:
    from .ranks import RankProcess


class Script:
    """From the first line to the last."""

    def __init__(self, process: RankProcess) -> None:
        self._p = process
        self._ending = False
        self._saved = -1

    def run(self) -> Thread:
        p = self._p
        w, s = p.world, p.world.scenario
        yield w.lag(0.05)
        p.at("boot")
        yield 0.001
        if not s.library:
            yield from self._plain_script()
            return
        p.send(Hello(process=p.number, pid=1000 + p.number))
        while p.welcome is None:
            yield lambda: p.welcome is not None
        p.parked = p.welcome.spare
        yield from self._join_first()
        yield w.rng.random() * s.setup_s
        p.at("setup")
        if s.setup_collective and p.parked:
            w.promises.on_replay(p, p.welcome.log)
        elif s.setup_collective:
            try:
                result = yield from p.block.collective(mix(p.tx.shared, 0))
                p.send(Recorded(scope="setup", index=0, data=str(result).encode()))
            except Unwound:
                yield from self._fail_outside("a collective in set-up failed")
        try:
            yield from self._loop(s.steps)
        except LeftLoop:
            yield from self._break_off()
        p.left_loop = True
        p.at("finish")
        if s.final_collective:
            yield from p.between.collective()
        yield w.lag(0.01)
        p.at("teardown")
        yield from self._linger()

    def _plain_script(self) -> Thread:
        p = self._p
        for _ in range(p.world.scenario.steps):
            yield p.world.lag(0.02)
            p.at("forward")

    def _join_first(self) -> Thread:
        p = self._p
        p.report(Stage.SETUP)
        if p.parked:
            return
        order = yield from p.wait_order(lambda o: o.want in ("form", "run"))
        p.at("join")
        if order.form is not None:
            p.partner.choose(order.form.partner, order.generation)
        try:
            yield from p.fence.open(order.generation, "", order.form.members if order.form is not None else ())
        except (NotJoined, Interrupted):
            yield from self._fail_outside("could not form the group")
        p.report(Stage.FORMED)
        p.at("joined")
        yield from p.wait_order(lambda o: o.generation > order.generation or o.want == "run")
        p.report(Stage.TRAINING)

    def _fail_outside(self, why: str) -> Thread:
        p = self._p
        number = p.membership.generation
        p.report(Stage.TRAINING, fault=p.fault("exception", f"RuntimeError: {why}", "communication"))
        order = yield from p.wait_order(lambda o: o.generation > number)
        p.report(Stage.PAUSED, generation=order.generation)
        yield from p.wait_order(lambda o: o.want == "stop")
        raise ScriptFailed

    def _loop(self, n: int) -> Thread:
        p = self._p
        p.scope = Scope.BETWEEN
        if p.parked:
            yield from p.fence.park()
        else:
            yield from p.tx.first_publish()
            p.at("first")
            yield from self._begin_or_load()
        p.holds = True
        p.page.step = p.tx.step
        while True:
            p.scope = Scope.BETWEEN
            if p.pending_fault is not None or p.newer_than(p.membership.generation):
                if p.called_softly > p.membership.generation:
                    p.tx.begun = max(p.tx.begun, p.tx.step)  # the code after the last block has been run
                yield from p.fence.recover(True)
            yield from self._save_if_due()
            p.feed.begin_if_wanted()
            if p.ahead.mind():
                p.report(Stage.TRAINING)
            if p.tx.step >= n:
                if (yield from self._finish()):
                    return
                continue
            k = p.tx.step
            counts = yield from p.block.run(k)
            if counts:
                yield from self.after_block()
            self.leave_if_due(k, counts)

    def _begin_or_load(self) -> Thread:
        p = self._p
        p.scope = Scope.SETUP
        p.loadable, p.partly = p.agent.loadable(p.rank), p.agent.memory.steps_of(p.rank)[1]
        p.report(Stage.READY)
        p.at("ready")
        number = p.membership.generation

        def answered(o: RankOrder) -> bool:
            return o.generation > number or (o.want == "run" and o.form is not None and o.form.begin)

        order = yield from p.wait_order(answered)
        if order.generation > number:
            yield from p.fence.recover(True)
        p.scope = Scope.BETWEEN
        if not p.holds:
            p.holds = True
            p.report(Stage.TRAINING)

    def _save_if_due(self) -> Thread:
        p = self._p
        every, step = p.world.scenario.save_every, p.tx.step
        if not every or not step or step % every or step == self._saved:
            return
        self._saved = step
        p.at("save")
        leads = p.rank == p.agent.logic.first_rank
        yield from p.agent.memory.keep_local(p.rank, step, step, p.tx.local)
        if leads:
            yield from p.agent.memory.keep_shared(step, p.tx.shared)
        p.send(Copied(step=step, generation=p.membership.generation, shared=leads))

    def after_block(self) -> Thread:
        """The user's code after a committed step: now and then an evaluation, with collectives."""
        p = self._p
        p.scope = Scope.OUTSIDE
        every = p.world.scenario.eval_every
        if every and p.tx.step % every == 0:
            slow = p.world.scenario.eval_section
            p.page.section += slow
            for _ in range(2):
                yield p.world.lag(0.2 if slow else 0.01)
                p.at("between")
                yield from p.between.collective()
            p.page.section -= slow
            p.page.progress_at = p.world.now

    def leave_if_due(self, k: int, counts: bool) -> None:
        """The last line of the loop's body."""
        p = self._p
        s = p.world.scenario
        if k != s.leave_at or (s.asks and not counts):
            return
        if s.leaves == "exit":
            p.die(0)
            raise Killed
        raise LeftLoop

    def _break_off(self) -> Thread:
        p = self._p
        if p.scope is not Scope.OUTSIDE:
            if p.world.scenario.leaves == "named":
                yield p.world.lag(0.03)  # what comes after the loop
            p.failing = True
            p.report(Stage.TRAINING, fault=p.fault("exception", "UsageError: the loop was left"))
            yield p.world.lag(0.01)
            raise ScriptFailed
        p.feed.end(Ended())
        p.broke, p.through = True, Stage.AFTER
        p.report(Stage.AFTER)

    def _finish(self) -> Thread:
        p = self._p
        p.page.section = 1
        p.feed.end(Ended())
        p.report(Stage.DONE)
        p.at("done")
        number = p.membership.generation
        order = yield from p.wait_order(lambda o: o.generation > number or o.want in ("finish", "leave"))
        p.page.section = 0
        p.scope = Scope.BETWEEN
        if order.generation > number:
            return False
        self.begin_to_end()
        p.scope = Scope.OUTSIDE
        p.through = Stage.AFTER
        p.report(Stage.AFTER)
        return True

    def begin_to_end(self) -> None:
        if not self._ending:
            self._ending = True
            self._p.between.clear()

    def _linger(self) -> Thread:
        p = self._p
        p.through = Stage.LEFT
        p.report(Stage.LEFT)
        while (yield from self._wait_to_leave(p.membership.generation)):
            p.at("lingering")
            yield from p.fence.recover(False)

    def _wait_to_leave(self, number: int) -> Thread:
        order = yield from self._p.wait_order(lambda o: o.generation > number or o.want in ("leave", "stop"))
        return order.generation > number
