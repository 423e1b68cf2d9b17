"""From the fence into the next generation, as in `onward/train/fence.py` and `generation.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onward.core.facts import Stage
from onward.wire.messages import Copied, Form, RankOrder

from .unwinding import Interrupted, NotJoined, ScriptFailed, Thread

if TYPE_CHECKING:
    from .fabric import Op
    from .ranks import RankProcess

FETCH_S = 2.0  # how long a receiver waits for its source


@dataclass
class Membership:
    """This process's part in one generation."""

    generation: int
    key: tuple[Any, ...] = ()
    peers: list[RankProcess] = field(default_factory=list)
    sequence: int = 0
    failed: bool = False
    broken: bool = False
    pending: Op | None = None


class Fence:
    """Where a rank waits while its job is mended, and how it goes on from there."""

    def __init__(self, process: RankProcess) -> None:
        self._p = process

    def park(self) -> Thread:
        p = self._p
        p.page.section = 1
        yield p.world.lag(p.world.scenario.forward_s)
        p.at("rehearse")
        assert p.welcome is not None
        if p.welcome.step >= 2:
            p.script.leave_if_due(p.welcome.step - 2, False)
        p.report(Stage.PARKED, generation=0)
        p.at("parked")
        last = 0
        while p.parked:
            order = yield from p.wait_order(
                lambda o, g=last: (
                    (o.want == "form" and o.generation > g) or p.following.concerns(o) or p.ahead.concerns(o)
                )
            )
            if order.want != "form":
                if p.ahead.mind():
                    p.report_parked(p.following.claimed)
                if p.following.concerns(order):
                    yield from p.following.follow(order)
                continue
            last = order.generation
            entered = yield from self._arrive_by_ghost(order)
            if not entered and p.holds:
                p.parked = False  # it comes to the fence as any rank does
            elif not entered and p.parked:
                p.report(Stage.PARKED, generation=0, fault=p.pending_fault)
                p.pending_fault = None
        p.page.section = 0

    def recover(self, ghosts: bool) -> Thread:
        while True:
            order = yield from self._stand()
            entered = yield from (self._arrive_by_ghost(order) if ghosts else self._enter(order))
            if entered:
                return

    def _arrive_by_ghost(self, order: RankOrder) -> Thread:
        """Enter; a rank that never got past its last step runs the block for show, to reach the code after it."""
        p = self._p
        form = order.form
        assert form is not None
        restarted = not p.holds and not p.parked
        if restarted:
            p.tx.begun = p.agent.saved_local(p.rank, form.step)[1]
        if not self._must_show(form):
            return (yield from self._enter(order))
        p.between.clear()
        yield p.world.lag(p.world.scenario.forward_s)
        entered = yield from self._enter(order)
        if entered:
            p.passed = form.step
            yield from p.script.after_block()
        p.script.leave_if_due(form.step - 1, entered)
        return entered

    def _must_show(self, form: Form) -> bool:
        """Also when it was given the state in an earlier try that failed, and now only has to keep it."""
        p = self._p
        return max(p.passed, p.tx.begun) < form.step and not form.through and not form.past

    def _stand(self) -> Thread:
        p = self._p
        number = p.membership.generation
        fault, p.pending_fault = p.pending_fault, None
        p.at("stand")
        if fault is not None:
            p.report(Stage.TRAINING, fault=fault)
        p.resumed = False
        while True:
            order = yield from p.wait_order(lambda o, n=number: o.generation > n)
            p.world.fabric.abort(p.membership)
            p.feed.end_at_fence(order.generation, p.between.current())
            if order.want == "pause":
                wanted = order.generation
                p.report(Stage.PAUSED, generation=wanted)
                p.at("paused")
                order = yield from p.wait_order(lambda o, g=wanted: o.generation > g or o.want != "pause")
            if order.want == "save" and order.form is not None:
                yield from self._save_here(order.form, order.generation)
                wanted = order.generation
                order = yield from p.wait_order(lambda o, g=wanted: o.generation > g or o.want != "save")
            if order.want == "form" and order.form is not None:
                return order
            number = max(number, order.generation - 1)
            if order.want == "stop":
                raise ScriptFailed
            yield 0.001

    def _save_here(self, form: Form, generation: int) -> Thread:
        p = self._p
        p.at("keep")
        if form.part == "undo":
            p.tx.take_back(form.step)
        else:
            p.tx.keep()
        yield from p.agent.memory.keep_shared(form.step, p.tx.shared)
        p.at("kept")
        p.send(Copied(step=form.step, generation=generation, shared=True))

    def _enter(self, order: RankOrder) -> Thread:
        p = self._p
        form = order.form
        assert form is not None
        was_parked = p.parked
        try:
            p.at("open")
            yield from self.open(order.generation, form.joined, form.members)
            p.partner.choose(form.partner, order.generation)
            p.page.launched = 0
            yield from self._arrive(form, order.generation)
            yield from p.partner.share(form.step)
            if form.through:
                p.script.begin_to_end()
            if form.between and form.part != "load":
                past = p.tx.begun >= form.step or form.past
                done = form.part == "receive" and past and not form.through
                yield from p.between.level(order.generation, done)
            if form.past:
                p.tx.begun = max(p.tx.begun, form.step)
        except (NotJoined, Interrupted) as e:
            p.world.fabric.abort(p.membership)
            if not p.newer_than(order.generation):
                text = f"could not join generation {order.generation}: {e}"
                p.pending_fault = p.fault("exception", text, "communication")
            return False
        p.parked, p.holds = False, True
        p.report(Stage.FORMED)
        p.at("formed")
        goes_on = ("run", "finish", "leave")
        after = yield from p.wait_order(lambda o: o.generation > order.generation or o.want in goes_on)
        if after.generation > order.generation:
            return False
        p.resumed = False
        p.page.step = p.tx.step
        p.page.progress_at = p.world.now
        if was_parked:
            p.page.section = 0  # from here on it is a rank like the others
        p.report(p.through or Stage.TRAINING)
        return True

    def open(self, generation: int, joined: str, members: Sequence[int] = ()) -> Thread:
        """Meet the others through the generation's store and connect to them, where that is not done already."""
        p = self._p
        w = p.world
        p.members = tuple(members) or tuple(range(w.scenario.world_size))
        m = p.membership = Membership(generation)
        there = p.ahead.take(joined)
        if joined:
            if len(there) < w.scenario.world_size:
                w.promises.on_not_joined(p, joined)
            m.key = (generation, joined)
            m.peers += there
            w.promises.on_joined(p)
            return
        mine = f"{p.agent.index}.{p.number}"
        yield from p.store(generation, "set", f"{generation}/{p.rank}", value=mine.encode())
        names = []
        for r in p.members:
            reply = yield from p.store(generation, "get", f"{generation}/{r}")
            names.append(reply.value.decode())
        yield w.lag(0.01)
        p.at("connect")
        m.key = (generation, *names)
        for name in names:
            index, number = map(int, name.split("."))
            peer = w.agents[index].children.get(number)
            if peer is None or not peer.alive or not w.network.reaches(p.agent.index, index, "ranks"):
                raise NotJoined(f"connection to process {name} refused")
            m.peers.append(peer)
        w.promises.on_joined(p)

    def _arrive(self, form: Form, generation: int) -> Thread:
        p = self._p
        tx = p.tx
        p.world.promises.on_arrive(p, form)
        if form.part == "receive":
            tx.forget()
            request = yield from self._fetch(form.source, generation)
            if form.fresh:
                yield from tx.publish_as_in_set_up(form.step)
            if not p.holds and not p.parked:
                tx.slots[form.step % 2] = (form.step, p.agent.saved_local(p.rank, form.step)[0])
            tx.received(request.value, form.step)
            tx.learn_from(request.learnt)
        elif form.part == "load":
            tx.forget()
            p.at("load")
            yield p.world.lag(p.world.scenario.transfer_s)
            shared, (local, _) = p.agent.saved_shared(form.step), p.agent.saved_local(p.rank, form.step)
            tx.slots[form.step % 2] = (form.step, local)
            tx.received(shared, form.step)
        elif form.part == "undo":
            tx.take_back(form.step)
        else:
            tx.keep()
        tx.go_light(form.light)
        if form.serves:
            yield from self._serve(form.serves, generation)
        p.world.promises.on_arrived(p, form)

    def _fetch(self, source: str, generation: int) -> Thread:
        p = self._p
        request = p.world.fabric.ask_state(p, source, generation)
        p.at("receive")
        p.world.after(FETCH_S, p.world.fabric._fail, request)
        while not (request.done or request.failed or p.newer_than(generation)):
            yield lambda: request.done or request.failed or p.newer_than(generation)
        if p.newer_than(generation) and not request.done:
            request.failed = True
            raise Interrupted
        if request.failed:
            raise NotJoined("the source of the state is gone")
        return request

    def _serve(self, count: int, generation: int) -> Thread:
        p = self._p

        def done() -> int:
            return sum(r.done for r in p.requests if r.generation == generation)

        p.at("serve")
        while done() < count:
            if p.newer_than(generation):
                for request in p.requests:
                    p.world.fabric._fail(request)
                raise Interrupted
            waiting = [r for r in p.requests if not r.started]
            for request in waiting:
                p.world.fabric.serve(p, request)
            yield lambda: done() >= count or p.newer_than(generation) or any(not r.started for r in p.requests)
