"""`onward.init()` and what it returns: the run, its steps and its sections."""

from __future__ import annotations

import atexit
import dataclasses
import os
import random
import sys
import time
import traceback
from collections.abc import Generator, Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

from onward.core.facts import FaultReport, Scope, Stage
from onward.devices import classify_error
from onward.errors import StateError, Unwind, UsageError, WireError
from onward.log import get_logger
from onward.train.backends import choose, pick_device
from onward.train.batches import Batches, Sampled, batches_over
from onward.train.between import BetweenSteps
from onward.train.checkpoint import Checkpoints
from onward.train.feed import Ended, Feed, check_of, digest_of
from onward.train.follow import Following
from onward.train.generation import Generation
from onward.train.group import Group
from onward.train.groups import Groups
from onward.train.injection import Injector
from onward.train.link import Interrupted, Link
from onward.train.local import LocalState
from onward.train.partner import Partner
from onward.train.protected import Protected
from onward.train.recorder import Recorder
from onward.train.step import Section, Step
from onward.train.store import LinkStore
from onward.train.transaction import Transaction, note_zero_grad
from onward.train.transfer import Server, fetch
from onward.train.waits import Processor
from onward.wire.messages import Form, RankOrder, Report
from onward.wire.page import Page

log = get_logger("onward.train")
REHEARSALS = 2  # DDP settles its bucket layout in the first backward pass and uses it from the second on
GOES_ON = ("run", "finish", "leave")

_run: Run | None = None


def start(timeout_s: float = 1800.0, device: str | None = None, backend: str | None = None) -> Run:
    """See `onward.init`."""
    global _run
    if _run is not None:
        raise UsageError("onward.init() was called before in this process; keep the run it returned")
    if dist.is_initialized():
        raise UsageError(
            "torch.distributed is initialised already; call onward.init() instead of init_process_group, it does both"
        )
    path = os.environ.get("ONWARD_SOCKET")
    if not path:
        raise UsageError(
            "this process was not started by `onward run`; start the script with "
            f"`onward run --nproc-per-node N {os.path.basename(sys.argv[0] or 'script.py')}`"
        )
    link = Link(path, bytes.fromhex(os.environ["ONWARD_TOKEN"]), int(os.environ["ONWARD_PROCESS"]))
    _run = Run(link, timeout_s, device, backend or os.environ.get("ONWARD_BACKEND"))
    return _run


class Run:
    """This rank's part in the job."""

    def __init__(self, link: Link, timeout_s: float, device: str | None, backend: str | None) -> None:
        me = link.welcome
        self.rank, self.local_rank, self.world_size = me.rank, me.local_rank, me.world_size
        self.incarnation = me.incarnation
        self.members = tuple(range(me.world_size))  # ranks that take part now
        self.elastic = me.elastic
        self.device = pick_device(device, me.local_rank)
        local_world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._link = link
        self._token = bytes.fromhex(os.environ["ONWARD_TOKEN"])
        self._page = Page(me.page)
        self._spare = me.spare
        self._scope = Scope.SETUP
        self._begun = False
        self._holds = False  # the state is one that counts: begun with, loaded or received
        self._resumed = False
        self._rehearsed = False
        self._rehearsing = False
        self._used_steps = False
        self._groups = Groups(LinkStore(link, self._number), me.address, timeout_s)
        self._groups.accelerated = self.device.type != "cpu"
        self._groups.devices = [self.device]
        self._groups.backends = choose(backend, self.device, me.local_rank, local_world)
        self._groups.before_launch = self._before_launch
        self._groups.on_complete = self._on_complete
        self._groups.on_unwind = self._on_unwind
        self._protected = Protected()
        self._partner = Partner(self._token, me.rank, me.attempt, self._groups.waits)
        self._local = LocalState(me.local_dir, self._protected, self._partner)
        self._tx = Transaction(self._protected, self._local, self._groups, self._page)
        self._checkpoints = Checkpoints(link, self._protected, self._local)
        self._loadable: tuple[int, ...] = ()
        self._partly: tuple[int, ...] = ()
        self._recorder = Recorder(link, me.log, self._spare)
        self._injector = Injector(link, me.injections, self._groups)
        self._between = BetweenSteps(link, self.rank, lambda: self.members, self._recover_outside)
        self._through: Stage | None = None
        self._pid = os.getpid()
        self._server = Server(me.address, self._token)
        self._feed = Feed(me.address, self._token, me.rank)
        self._following = Following(self._protected, self._local, self._tx, self._groups)
        self._step_started = 0
        self._processor = Processor()
        self._at_begin = (0, 0)
        self._loop_top = 0
        register_optimizer_step_pre_hook(self._before_optimizer)
        atexit.register(self._linger)
        link.start(self._page, self._on_pause)
        self._join_first()

    # ------------------------------------------------------------------------------------- public

    def protect(self, local: dict[str, Any] | None = None, **objects: Any) -> None:
        """Name what a replacement must be given. `local` holds what differs from rank to rank."""
        if self._begun:
            raise UsageError("protect must be called before the first step")
        if not objects and not local:
            raise UsageError("protect needs at least one object, for example run.protect(model=model, optimizer=opt)")
        problems = []
        for is_local, group in ((False, objects), (True, local or {})):
            for name, value in group.items():
                try:
                    self._protected.add(name, value, is_local)
                except UsageError as e:
                    problems.extend(e.problems)
        if problems:
            raise UsageError(problems)
        note_zero_grad(self._tx, self._protected)

    def steps(self, n: int) -> Iterator[Step]:
        """The steps 0 to n-1. One that faults is run again, on every rank, from the same state."""
        if not isinstance(n, int) or n < 0:
            raise UsageError(f"steps needs a number of steps, got {n!r}")
        if self._used_steps:
            raise UsageError("run.steps() was used before; a run has one loop, put all its steps into it")
        self._used_steps = True
        self._page.set("total", n)
        return self._steps(n)

    def batches(self, source: Any, **options: Any) -> Batches:
        """Batches that survive a redo and a replacement. See `onward.train.batches`."""
        made = batches_over(self, source, **options)
        self._local.cursors.append(made)
        return made

    def checkpoint(self, every: int, dir: Any = "ckpt", keep: int = 3, resume: bool = True) -> None:
        """Save the state every so many steps to `dir`, and begin from the newest valid checkpoint that is there."""
        if self._used_steps:
            raise UsageError("checkpoint must be called before run.steps()")
        self._checkpoints.plan(every, dir, keep, resume)

    def _at_micro_batch(self, seed: int, step: int, micro: int, last: bool) -> None:
        """Where ranks may be absent: random numbers belong to the micro-batch, and gradients are summed up before they
        are exchanged, once a step, since some ranks have more of them to sum up than others."""
        key = (seed * 1_000_003 + step) * 65_537 + micro
        torch.manual_seed(key)
        random.seed(key)
        for wrapper in self._protected.wrappers():
            wrapper.require_backward_grad_sync = last

    def log(self, loss: float) -> None:
        """Show `loss` to whoever watches the job."""
        self._page.set_float("loss_bits", float(loss))
        self._page.set("loss_set", 1)

    def section(self, name: str) -> Section:
        """Marks work with collectives outside a step, such as evaluation."""
        return Section(self, name)

    # ------------------------------------------------------------------------------------- joining

    def _number(self) -> int:
        return self._groups.generation.number

    def _join_first(self) -> None:
        dist.Backend.register_backend("onward", self._make_group, extended_api=True, devices=["cpu", "cuda", "npu"])
        if self._spare:
            self._groups.alone = True
            self._report(Stage.SETUP)
            self._init_torch()
            return
        self._report(Stage.SETUP)
        order = self._link.wait_order(lambda o: o.want in ("form", "run"))
        assert order is not None
        self._groups.generation = Generation(order.generation)
        if order.form is not None:
            self._partner.choose(order.form.partner, order.generation)
        self._page.set("generation", order.generation)
        try:
            self._init_torch()
        except RuntimeError as e:
            self._fail_outside(f"could not form the group: {e}")
        self._report(Stage.FORMED)
        self._link.wait_order(lambda o: o.generation > order.generation or o.want == "run")
        self._report(Stage.TRAINING)

    def _init_torch(self) -> None:
        timeout = timedelta(seconds=self._groups.timeout_s)
        dist.init_process_group(
            "onward", store=self._groups.store, rank=self.rank, world_size=self.world_size, timeout=timeout
        )

    def _make_group(self, options: Any, backend_options: Any) -> Group:
        ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
        size = options.group_size
        return Group(self._groups, options.group_id, options.group_rank, size, ranks, self.world_size)

    # ------------------------------------------------------------------------------------- hooks

    def _before_launch(self, group: Group, op: str, result: Any) -> Any:
        over_world = group.over_world
        if self._groups.alone:
            return self._recorder.replay(op, result) if not self._begun else None
        self._injector.at("collective", self._tx.step)
        if self._groups.skip_next:
            return None
        if self._tx.open:
            self._tx.on_collective(op, over_world)
        if over_world:
            self._page.set("launched", self._page.get("launched") + 1)
        if not self._page.get("launched_ns"):
            self._page.touch("launched_ns")
        self._page.touch("progress_ns")
        return self._recorder.note(op) if not self._begun else None

    def _on_complete(self, generation: Generation, oldest: float) -> None:
        self._page.set("launched_ns", int(oldest * 1e9))
        self._page.touch("progress_ns")

    def _before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._tx.open or self._groups.alone:
            return
        self._groups.waits.surfaced()
        if not self._tx.gate():
            raise Unwind(self._groups.generation.failed)
        self._injector.at("optimizer", self._tx.step)

    def _on_pause(self, order: RankOrder) -> None:
        """In the link thread: a newer generation is wanted, so nobody may go on waiting in this one."""
        if order.generation > self._number():
            self._groups.generation.abort(order.why or "the job is paused")

    def _on_unwind(self, why: str) -> None:
        if self._scope is Scope.SETUP or (self._scope is Scope.OUTSIDE and self._groups.outside is None):
            self._fail_outside(why)

    def _fail_outside(self, why: str) -> None:
        """A fault where nothing can be run again: say so and wait for the next policy, which ends this process."""
        fault = self._fault("exception", f"RuntimeError: {why}", retryable="communication")
        self._report(Stage.TRAINING, fault=fault)
        order = self._link.wait_order(lambda o: o.generation > self._number(), 120.0)
        if order is not None:
            self._report(Stage.PAUSED, generation=order.generation)
            self._link.wait_order(lambda o: o.want == "stop", 600.0)
        raise RuntimeError(f"a collective outside a step failed and cannot be run again: {why}")

    # ------------------------------------------------------------------------------------- reports

    def _report(self, stage: Stage, generation: int | None = None, fault: FaultReport | None = None) -> None:
        step, clean, undo = self._tx.standing()
        if not self._holds:
            step, clean, undo = -1, False, False
        self._link.send(
            Report(
                stage=stage.value,
                generation=self._number() if generation is None else generation,
                step=step,
                clean=clean,
                undo=undo,
                scope=self._scope.value,
                resumed=self._resumed,
                serve=self._server.address,
                fault=fault,
                local_steps=list(self._local.steps()),
                between=self._between.count,
                loadable=list(self._loadable),
                partly=list(self._partly),
                light=self._tx.shape,
                elastic=self.elastic and any(isinstance(b, Sampled) for b in self._local.cursors),
                feed=self._feed.address,
                follows=self._following.follows,
            )
        )

    def _fault(self, kind: str, text: str, trace: str = "", retryable: str = "") -> FaultReport:
        return FaultReport(
            kind=kind,
            rank=self.rank,
            incarnation=self.incarnation,
            step=self._tx.step,
            text=text,
            traceback=trace,
            retryable=retryable,
            at=time.time(),
        )

    # ------------------------------------------------------------------------------------- the loop

    def _steps(self, n: int) -> Generator[Step, None, None]:
        self._stay_in_loop()
        if self._spare:
            yield from self._park(n)
        else:
            self._tx.first_publish()
            self._begun = True
            yield from self._begin_or_load(n)
        self._page.set("step", self._tx.step)
        self._feed.start()
        try:
            while True:
                self._stay_in_loop()
                if self._pending_fault is not None or self._link.newer_than(self._number()):
                    yield from self._recover(n)
                self._save_if_due()
                if self._feed.wanted:
                    self._begin_to_tell()
                if self._tx.step >= n:
                    if self._finish():
                        return
                    continue
                step = Step(self, self._tx.step)
                yield step
                if not step.entered:
                    raise UsageError("the body of `for step in run.steps(n)` must run the step: `with step: ...`")
        finally:
            self._leave_step()

    def _begin_or_load(self, n: int) -> Generator[Step, None, None]:
        """All ranks meet before their first step, so that they begin from the same one."""
        self._scope = Scope.SETUP  # nothing is held yet that could be redone
        self._loadable, self._partly = self._checkpoints.loadable(), self._checkpoints.partly()
        self._report(Stage.READY)
        number = self._number()
        order = self._link.wait_order(
            lambda o: o.generation > number or (o.want == "run" and o.form is not None and o.form.begin)
        )
        assert order is not None
        if order.generation > number:
            yield from self._recover(n)
        self._loadable = self._partly = ()
        self._stay_in_loop()
        if not self._holds:
            self._holds = True
            self._report(Stage.TRAINING)

    def _save_if_due(self) -> None:
        """At the top of the loop: the user's code after the last block has been run, so nothing is left out."""
        step = self._tx.step
        if step == 1 and not self._prepared:
            self._prepared = True
            self._checkpoints.prepare()
        if self._checkpoints.due(step):
            self._tx.republish()
            self._checkpoints.save(step, self._number(), self._tx.learnt)

    _prepared = False

    def _leave_step(self) -> None:
        """User code between steps, or after the last: its collectives are run again, not unwound."""
        self._scope = Scope.OUTSIDE
        self._groups.outside = self._between
        self._groups.gated = False

    def _stay_in_loop(self) -> None:
        self._scope = Scope.BETWEEN
        self._groups.outside = None
        self._groups.gated = False

    _pending_fault: FaultReport | None = None

    def _finish(self) -> bool:
        """Wait until every rank is through the loop. False when the job needs us again."""
        self._page.set("section", 1)
        self._local.begun = self._tx.step
        self._feed.end(Ended(why="the loop is over"))
        self._report(Stage.DONE)
        number = self._number()
        order = self._link.wait_order(lambda o: o.generation > number or o.want in ("finish", "leave"))
        assert order is not None
        self._page.set("section", 0)
        if order.generation > number:
            return False
        self._begin_to_end()
        self._through = Stage.AFTER
        self._report(Stage.AFTER)
        return True

    def _begin_to_end(self) -> None:
        """What was run since the last block is behind everybody: from here on the stretch after the loop counts."""
        if not self._ending:
            self._ending = True
            self._between.forget()

    _ending = False

    def _linger(self) -> None:
        """The script has ended. Stay until those of all ranks have: one that fails now needs the state we hold."""
        if self._through is None or getattr(sys, "last_value", None) is not None or os.getpid() != self._pid:
            return
        self._groups.outside = None
        self._through = Stage.LEFT
        self._report(Stage.LEFT)
        while self._wait_to_leave(self._number()):
            self._recover_here()

    def _wait_to_leave(self, number: int) -> bool:
        """False when all have ended; True when the job needs us again."""
        order = self._link.wait_order(lambda o: o.generation > number or o.want in ("leave", "stop"))
        return order is not None and order.generation > number

    # ------------------------------------------------------------------------------------- spares

    def _park(self, n: int) -> Generator[Step, None, None]:
        """Wait, alone, until there is a place for this process; then take it over."""
        self._page.set("section", 1)
        self._groups.warm()
        if self._link.welcome.step >= 2:
            yield from self._rehearse(n)
        self._report(Stage.PARKED, generation=0)
        while True:
            order = self._link.wait_order(lambda o: o.want == "form" or self._following.concerns(o))
            assert order is not None
            if order.want != "form":
                yield from self._follow(n, order)
                continue
            assert order.form is not None
            if order.form.step >= 1 and not self._rehearsed:
                yield from self._rehearse(n)
            entered = yield from self._arrive_by_ghost(order)
            if entered:
                break
            # Also after it had formed: all it holds can be given again, so it does not come to the fence.
            fault, self._pending_fault = self._pending_fault, None
            self._report(Stage.PARKED, generation=0, fault=fault)
        self._page.set("section", 0)

    def _follow(self, n: int, order: RankOrder) -> Generator[Step, None, None]:
        """Stay beside the rank whose place this process is to take, until it stands at the fence."""
        if not self._rehearsed:
            self._form_step = max(1, self._form_step)
            yield from self._rehearse(n)
        told = self._following
        began = told.begin(order, self._token, self.rank, lambda: self._is_wanted(order))
        while began:
            step = told.next_step()
            if step is None or step >= n:
                break
            yield Step(self, step, following=told)
            if told.says_so():
                self._report(Stage.PARKED, generation=0)
        self._groups.alone = True
        generation = told.end()
        self._holds = bool(generation)
        self._between.adopt(told.between if generation else [])
        self._report(Stage.PARKED, generation=generation)

    def _is_wanted(self, order: RankOrder) -> bool:
        """Nobody waits for what this process does beside the others."""
        return self._link.order is not None and self._link.order.want == "form"

    def _begin_to_tell(self) -> None:
        """At the top of the loop: a stand-in wants to follow this rank."""
        self._tx.republish()
        if self._groups.device_backend is not None:
            self._feed.refuses = "results of collectives on a device are not told yet"
        elif self._tx.step < 1 or self._local.slot(self._tx.step).step != self._tx.step:
            return  # not before the wrappers have settled, and the local state of this step is safe
        if self._feed.begin(self._tx.step, self._protected, self._local, self._tx.learnt):
            self._groups.tap = self._feed.expect

    def _end_to_tell(self, generation: int) -> None:
        """At the fence: who follows is told where this rank stands, and what is to be found there."""
        self._groups.tap = None
        if not self._feed.open:
            return
        if not self._tx.open and self._local.begun >= self._tx.step:
            self._tx.republish()  # the code after the last block has been run, and may have drawn something
        step, clean, _ = self._tx.standing()
        slot = self._local.slot(step)
        if not clean or slot.step != step or not self._holds:
            return self._feed.end(Ended(why="it was interrupted in the middle of an update"))
        self._feed.end(
            Ended(
                step=step,
                generation=generation,
                past=self._local.begun >= step,
                digest=digest_of(self._protected),
                small=self._protected.check_small(at_begin=self._tx.open),
                light=self._tx.shape,
                local=slot.content(),
                between=self._between.results(),
            )
        )

    def _arrive_by_ghost(self, order: RankOrder) -> Generator[Step, None, bool]:
        """Enter; where the rank had not got past its last step, its block is run once more for show.

        The code after the block of step T-1 (a log line, an evaluation) has not been run by this rank, and Python can
        reach it only through the block. So the block runs alone, its effects are overwritten by the state of T, and
        the step then reads as committed, as it is.
        """
        form = order.form
        assert form is not None
        restarted = not self._holds and not self._spare
        begun = self._checkpoints.begun(form.step) if restarted else self._local.begun
        if form.part not in ("receive", "load") or form.fresh or form.past or form.step < 1 or begun >= form.step:
            return self._enter(order)
        self._between.forget()
        ghost = Step(self, form.step - 1, ghost=order)
        yield ghost
        return ghost.committed

    def _rehearse(self, n: int) -> Generator[Step, None, None]:
        """Run the block alone, so that what is built in the first steps (buckets, kernels, threads) is there."""
        was_alone, was_scope = self._groups.alone, self._scope
        self._groups.alone = self._rehearsing = True
        try:
            for _ in range(REHEARSALS):
                index = max(self._link.welcome.step, self._form_step, 0)
                step = Step(self, min(index, max(n - 1, 0)), rehearsal=True)
                yield step
                if step.error:
                    log.warning("rank %d: the rehearsal of a step failed (%s)", self.rank, step.error)
                    break
            self._protected.clear_grads()
            self._rehearsed = True
        finally:
            self._groups.alone, self._rehearsing, self._scope = was_alone, False, was_scope

    # ------------------------------------------------------------------------------------- recovery

    def _recover(self, n: int) -> Generator[Step, None, None]:
        """Stand at the fence until the job goes on. Afterwards `_tx.step` is the agreed step."""
        # At the top of the loop the code after the last block has been run: nobody who goes on from here runs it again.
        self._local.begun = max(self._local.begun, self._tx.step)
        while True:
            order = self._stand()
            form = order.form
            assert form is not None
            given = form.part in ("receive", "load") and form.step >= 1
            if given and not self._layout_settled() and not self._rehearsed:
                self._form_step = form.step
                yield from self._rehearse(n)
            entered = yield from self._arrive_by_ghost(order)
            if entered:
                return

    _form_step = 0

    def _recover_here(self) -> None:
        """`_recover` where no rehearsal can be needed."""
        while True:
            if self._enter(self._stand()):
                return

    def _recover_outside(self) -> None:
        """A collective between steps failed: recover right there."""
        self._note_break()
        self._recover_here()

    def _stand(self) -> RankOrder:
        """Report what is held, and wait to be told how to go on."""
        number = self._number()
        fault, self._pending_fault = self._pending_fault, None
        if fault is not None:
            self._report(Stage.TRAINING, fault=fault)
        self._resumed = False
        while True:
            order = self._link.wait_newer(number)
            self._groups.generation.abort(order.why)
            self._groups.settle()
            self._end_to_tell(order.generation)
            if order.want in ("pause", "save"):
                self._report(Stage.PAUSED, generation=order.generation)
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
        error = self._checkpoints.copy(form.step, self._local.begun, self._tx.learnt, shared=True)
        self._link.send(self._checkpoints.copied(form.step, generation, shared=True, error=error))

    def _enter(self, order: RankOrder) -> bool:
        """Join the generation of `order` and arrive at its step. False when it has been left again meanwhile."""
        form = order.form
        assert form is not None

        def interrupted() -> bool:
            return self._link.newer_than(order.generation)

        try:
            self._groups.open(order.generation, form.members)
            self.members = tuple(form.members) or tuple(range(self.world_size))
            self._partner.choose(form.partner, order.generation)
            self._page.set("generation", order.generation)
            self._page.set("launched", 0)
            self._arrive(form, order.generation, interrupted)
            self._local.copy_to_partner(self._tx.step)
            if form.through:
                self._begin_to_end()
            if form.between and form.part != "load":
                past = self._local.begun >= form.step or form.fresh or form.past
                done = form.part == "receive" and past and not form.through
                self._between.level(order.generation, done)
            for wrapper in self._protected.wrappers():
                wrapper._update_process_group(wrapper.process_group)
        except (RuntimeError, StateError, WireError, OSError, TimeoutError, Interrupted) as e:
            self._groups.generation.abort(str(e))
            if form.part == "load" and isinstance(e, StateError) and not interrupted():
                raise  # a checkpoint that this script cannot take over: trying again would not help
            if not interrupted():
                text = f"{type(e).__name__}: could not join generation {order.generation}: {e}"
                log.info("rank %d: %s", self.rank, text)
                self._pending_fault = self._fault("exception", text, retryable="communication")
            return False
        self._report(Stage.FORMED)
        after = self._link.wait_order(lambda o: o.generation > order.generation or o.want in GOES_ON)
        assert after is not None
        if after.generation > order.generation:
            return False
        self._spare, self._begun, self._holds, self._resumed = False, True, True, False
        self._page.set("step", self._tx.step)
        self._page.touch("progress_ns")
        self._report(self._through or Stage.TRAINING)
        return True

    def _arrive(self, form: Form, generation: int, interrupted: Any) -> None:
        tx = self._tx
        if form.part == "receive":
            tx.clean, tx.undo, tx.open = False, False, False
            self._protected.adopting = form.fresh
            manifest = fetch(form.source, self._token, generation, self._protected, interrupted, 60.0)
            if form.fresh:
                self._local.publish(form.step, self._local.capture())
            if not self._holds and not self._spare:
                self._checkpoints.load_local(form.step)
            tx.moved_to(form.step)
            tx.learn_from(manifest.last_sync)
        elif form.part == "load":
            tx.clean, tx.undo, tx.open = False, False, False
            manifest = self._checkpoints.load(form.step)
            tx.moved_to(form.step)
            tx.learn_from(manifest.last_sync)
        elif form.part == "undo":
            tx.take_back(form.step)
        else:
            tx.keep()
        tx.go_light(form.light)
        if form.serves:
            manifest, tensors = self._protected.describe(form.step, tx.learnt, buffers=True)
            self._server.serve(generation, manifest, tensors, form.serves, interrupted)

    def _layout_settled(self) -> bool:
        return self._tx.step >= 1 or self._rehearsed

    # ------------------------------------------------------------------------------------- one step

    def _begin(self, step: Step) -> None:
        outside = self._tx.begin()
        if self._feed.open:
            if outside:
                self._feed.drop("it changes its parameters outside steps")
            image = self._local.slot(step.index).content() if self._tx.republished else b""
            small = self._protected.check_small(at_begin=True)
            self._feed.begun(step.index, check_of(self._local.capture()), small, image)
        for name in outside:
            if name not in self._tx.warned:
                self._tx.warned.add(name)
                log.warning(
                    "rank %d: %s was changed outside a step; a redo cannot put that back. Move the change into the "
                    "`with step:` block",
                    self.rank,
                    name,
                )
        self._scope = Scope.STEP
        self._groups.outside = None
        self._groups.gated = True
        self._local.begun = step.index
        self._groups.waits.begin()
        self._at_begin = self._processor.read()
        self._step_started = time.monotonic_ns()
        self._injector.at("begin", step.index)

    def _begin_ghost(self) -> None:
        tx = self._tx
        if tx.clean and tx.step in self._local.steps():
            tx.keep()  # a rank that fell behind shows the step as it was, its own loss included
        self._groups.alone = True
        self._scope = Scope.STEP

    def _is_known(self, order: RankOrder, error: BaseException, tb: TracebackType | None) -> bool:
        """The error that ended the process before this one, at the same step: it is the script's own."""
        form = order.form
        assert form is not None
        text = f"{type(error).__name__}: {error}"
        if text != form.error:
            return False
        trace = "".join(traceback.format_exception(type(error), error, tb))[-20000:]
        fault = dataclasses.replace(self._fault("exception", text, trace), step=form.step - 1)
        self._report(Stage.TRAINING, fault=fault)
        return True

    def _end_ghost(self, order: RankOrder) -> bool:
        self._groups.alone = False
        self._stay_in_loop()
        entered = self._enter(order)
        if entered:
            self._leave_step()
        return entered

    def _end(self, step: Step) -> None:
        """The block ended without an exception."""
        if not self._groups.drain(self._groups.generation):
            step.committed = False
            return self._note_break()
        vote = self._tx.end()
        if step.index == 0:
            for wrapper in self._protected.wrappers():
                wrapper.reducer._rebuild_buckets()
        self._tx.applied()
        self._measure()
        if self._tx.needs_gate and not self._meet(step, vote):
            return None
        step.committed = True
        self._committed(step)
        return None

    def _measure(self) -> None:
        """What this rank did itself in the block. On a device that is not known: it works behind the host's back."""
        waits = self._groups.waits
        waits.surfaced()
        ran, queued = (now - then for now, then in zip(self._processor.read(), self._at_begin, strict=True))
        spent = max(1, ran, time.monotonic_ns() - self._step_started - waits.waited_ns)
        known = self._groups.device_backend is None
        self._effort = (spent, min(queued, spent - min(ran, spent))) if known else (0, 0)

    _effort = (0, 0)  # in nanoseconds: all of it, and the part without a processor

    def _meet(self, step: Step, vote: int) -> bool:
        """Wait at the gate until every rank has finished the step. False when the job decided to redo it."""
        generation = self._number()
        self._page.set("gate", 1)
        try:
            reply = self._link.ask(generation, "arrive", f"step/{step.index}", 1e9, patient=True, amount=vote)
            if reply.error:
                self._groups.generation.abort(reply.error)
                self._note_break()
                raise Interrupted(reply.error)
        except Interrupted:
            self._stay_in_loop()
            self._recover_here()
            step.committed = self._tx.step == step.index + 1
            if step.committed:
                self._committed(step)
            return False
        finally:
            self._page.set("gate", 0)
        self._tx.settled(reply.number)
        return True

    def _committed(self, step: Step) -> None:
        page = self._page
        now = time.monotonic_ns()
        page.set("step_ns", now - self._step_started)
        page.set("compute_ns", self._effort[0])
        page.set("queued_ns", self._effort[1])
        page.set("step", self._tx.step)
        page.set("own_ns", self._tx.own_ns)
        page.set("progress_ns", now)
        self._between.forget()
        if self._feed.open:
            self._feed.committed(step.index)
        self._leave_step()
        if not self._resumed:
            self._resumed = True
            self._report(Stage.TRAINING)
            self._groups.bury()
        if self._tx.broke_shape == "light":
            self._pending_fault = self._fault(
                "shape", "the block changed its shape; all ranks go back to careful steps", retryable="communication"
            )

    def _note_break(self) -> None:
        """A collective failed: a peer is gone, or the job is paused. Either way the fence is next."""
        if not self._link.newer_than(self._number()):
            why = self._groups.generation.failed
            found = classify_error("RuntimeError", why, self._link.welcome.retry_on)
            kind = found.kind if found else "communication"
            self._pending_fault = self._fault("exception", f"RuntimeError: {why}", retryable=kind)

    def _failed(self, step: Step, kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> bool:
        """The block raised. True when the step will be redone, False to let the error out."""
        if isinstance(error, Unwind) or self._groups.generation.broken:
            self._note_break()
            return True
        if not isinstance(error, Exception):
            return False
        text = f"{kind.__name__}: {error}"
        trace = "".join(traceback.format_exception(kind, error, tb))[-20000:]
        found = classify_error(kind.__name__, str(error), self._link.welcome.retry_on)
        if found is None:
            self._report(Stage.TRAINING, fault=self._fault("exception", text, trace))
            return False
        if found.kind == "memory":
            self._tx.damaged()
        self._pending_fault = self._fault("exception", text, trace, retryable=found.kind)
        return True
