"""The fence: where a rank stands when its generation has ended, and how it gets from there into the next one."""

from __future__ import annotations

from collections.abc import Callable

from onward.core.facts import Stage
from onward.errors import StateError, WireError
from onward.log import get_logger
from onward.title import take_place
from onward.train.between import Untold
from onward.train.link import Interrupted
from onward.train.manifest import Manifest
from onward.train.rank import Rank
from onward.train.telling import Telling
from onward.train.transfer import fetch
from onward.wire import memory
from onward.wire.messages import Form, RankOrder

log = get_logger("onward.train")
GOES_ON = ("run", "finish", "leave")
RECEIVE_S = 60.0  # for the whole state, from the rank that has it


class Fence:
    """Used by the loop, by blocks, and by collectives between steps."""

    def __init__(self, rank: Rank, telling: Telling) -> None:
        self._rank = rank
        self._telling = telling
        self._link, self._tx, self._groups = rank.link, rank.tx, rank.groups
        self.through: Stage | None = None  # the loop is behind this rank: how far it has come since
        rank.between.on_failure = self._recover_outside

    def recover_here(self) -> None:
        """Stand, and enter, until the job goes on. For places where no rehearsal can be needed."""
        while True:
            if self.enter(self.stand()):
                return

    def _recover_outside(self) -> None:
        """A collective between steps failed: recover right there."""
        self._rank.note_break()
        self.recover_here()

    def stand(self) -> RankOrder:
        """Report what is held, and wait to be told how to go on."""
        rank = self._rank
        number = rank.generation
        fault, rank.pending_fault = rank.pending_fault, None
        if fault is not None:
            rank.report(Stage.TRAINING, fault=fault)
        rank.resumed = False
        while True:
            order = self._link.wait_newer(number)
            self._groups.generation.abort(order.why)
            self._groups.settle()
            self._telling.end_at_fence(order.generation)
            if not self._tx.open:
                rank.protected.look_for_withheld()
            if order.want in ("pause", "save"):
                rank.report(Stage.PAUSED, generation=order.generation)
            if order.want == "pause":
                order = self._link.wait_change(order)
            if order.want == "save" and order.form is not None:
                self._save_here(order.form, order.generation)
                order = self._link.wait_change(order)
            if order.want == "form" and order.form is not None:
                return order
            if order.want == "stop":
                raise SystemExit(1)
            number = max(number, order.generation - 1)

    def _save_here(self, form: Form, generation: int) -> None:
        """Everybody is about to end, and this rank holds a complete copy: leave it in the node's memory."""
        if form.part == "undo":
            self._tx.take_back(form.step)
        else:
            self._tx.keep()
        checkpoints = self._rank.checkpoints
        error = checkpoints.copy(form.step, self._rank.local.begun, self._tx.learnt, shared=True)
        self._link.send(checkpoints.copied(form.step, generation, shared=True, error=error))

    def enter(self, order: RankOrder) -> bool:
        """Join the generation of `order` and arrive at its step. False when it has been left again meanwhile."""
        rank, form = self._rank, order.form
        assert form is not None

        def interrupted() -> bool:
            return self._link.newer_than(order.generation)

        try:
            self._groups.open(order.generation, form.members, rank.ahead.take(form.joined))
            rank.members = tuple(form.members) or tuple(range(rank.world_size))
            rank.partner.choose(form.partner, order.generation)
            rank.page.set("generation", order.generation)
            rank.page.set("launched", 0)
            self._arrive(form, order.generation, interrupted)
            rank.local.copy_to_partner(self._tx.step)
            if form.through:
                rank.between.begin_to_end()
            if form.between and form.part != "load":
                past = rank.local.begun >= form.step or form.past
                done = form.part == "receive" and past and not form.through
                rank.between.level(order.generation, done)
            rank.protected.buckets.arrive(form.step)
            if form.past:  # nor is it to be run by whoever takes this process's place
                rank.local.begun = max(rank.local.begun, form.step)
        except (RuntimeError, StateError, WireError, OSError, TimeoutError, Interrupted) as e:
            self._groups.generation.abort(str(e))
            if form.part == "load" and isinstance(e, StateError) and not interrupted():
                raise  # a checkpoint that this script cannot take over: trying again would not help
            if not interrupted():
                text = f"{type(e).__name__}: could not join generation {order.generation}: {e}"
                log.info("rank %d: %s", rank.index, text)
                if isinstance(e, Untold):
                    rank.pending_fault = rank.fault("untold", str(e))
                else:
                    rank.pending_fault = rank.fault("exception", text, retryable="communication")
            return False
        rank.report(Stage.FORMED)
        after = self._link.wait_order(lambda o: o.generation > order.generation or o.want in GOES_ON)
        assert after is not None
        if after.generation > order.generation:
            return False
        if rank.spare:
            take_place()
            memory.stay()
        rank.spare, rank.begun, rank.holds, rank.resumed = False, True, True, False
        rank.page.set("step", self._tx.step)
        rank.page.touch("progress_ns")
        rank.report(self.through or Stage.TRAINING)
        return True

    def _arrive(self, form: Form, generation: int, interrupted: Callable[[], bool]) -> None:
        rank, tx = self._rank, self._tx
        if form.part in ("receive", "load"):
            tx.clean, tx.undo, tx.open = False, False, False
            if form.part == "receive":
                manifest = self._receive(form, generation, interrupted)
            else:
                manifest = rank.checkpoints.load(form.step)
            tx.moved_to(form.step)
            tx.learn_from(manifest.last_sync)
        elif form.part == "undo":
            tx.take_back(form.step)
        else:
            tx.keep()
        tx.go_light(form.light)
        if form.serves:
            manifest, tensors = rank.protected.describe(form.step, tx.learnt, buffers=True, behind=True)
            rank.server.serve(generation, manifest, tensors, form.serves, interrupted)

    def _receive(self, form: Form, generation: int, interrupted: Callable[[], bool]) -> Manifest:
        """The shared state from another rank; what is local to this one is here already, or beside a checkpoint."""
        rank = self._rank
        rank.protected.adopting = form.fresh
        behind = rank.is_behind(form)
        manifest = fetch(form.source, rank.identity, generation, rank.protected, interrupted, RECEIVE_S, behind)
        if form.fresh:
            rank.local.refresh()
            rank.local.publish(form.step, rank.local.capture())
        if not rank.holds and not rank.spare:
            rank.checkpoints.load_local(form.step)
        return manifest
