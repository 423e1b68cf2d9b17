"""This process's rank: the parts it is made of, where it stands, and how it says so to its agent."""

from __future__ import annotations

import time

from onward.core.facts import FaultReport, Scope, Stage
from onward.devices import classify_error
from onward.train.ahead import Ahead
from onward.train.backends import choose, pick_device
from onward.train.backends.gloo import door_of
from onward.train.batches import Sampled
from onward.train.between import BetweenSteps
from onward.train.buckets import Buckets
from onward.train.checkpoint import Checkpoints
from onward.train.devicetime import DeviceTime
from onward.train.feed import Feed
from onward.train.follow import Following
from onward.train.groups import Groups
from onward.train.hugepages import HugePages
from onward.train.injection import Injector
from onward.train.link import Link
from onward.train.local import LocalState
from onward.train.partner import Partner
from onward.train.protected import Protected
from onward.train.settings import RankSettings
from onward.train.store import LinkStore
from onward.train.transaction import Transaction
from onward.train.transfer import Server
from onward.wire.messages import Form, Report
from onward.wire.page import Page


class Rank:
    """Shared by all that runs the loop. One per process."""

    def __init__(self, link: Link, settings: RankSettings) -> None:
        me = link.welcome
        self.index, self.world_size, self.incarnation = me.rank, me.world_size, me.incarnation
        self.members = tuple(range(me.world_size))  # ranks that take part now
        self.elastic = me.elastic
        self.device = pick_device(settings.device, me.local_rank)
        self.link = link
        self.identity = settings.identity
        self.page = Page(me.page)
        self.spare = me.spare
        self._scope = Scope.SETUP
        self.begun = False
        self.in_ghost = False  # the last block was run for show (see `alone`), or its code after the block is
        self.in_loop = False  # the script has come to its steps
        self.holds = False  # the state is one that counts: begun with, loaded or received
        self.resumed = False
        self.broke = False  # the loop was left with `break`
        self.pending_fault: FaultReport | None = None  # to be reported at the fence
        self.loadable: tuple[int, ...] = ()
        self.partly: tuple[int, ...] = ()
        self.groups = Groups(LinkStore(link, lambda: self.generation), door_of(me.address), settings.timeout_s)
        self.groups.accelerated = self.device.type != "cpu"
        self.groups.devices = [self.device]
        self.groups.backends = choose(settings.backend, self.device, me.local_rank, settings.local_world)
        if self.groups.device_backend is not None:
            self.groups.device_time = DeviceTime(self.groups.device_backend.runtime)
        self.ahead = Ahead(self.groups, link)
        self.protected = Protected(Buckets(self.groups))
        self.partner = Partner(self.identity, me.rank, me.attempt, self.groups.waits)
        self.pages = HugePages()
        self.local = LocalState(me.local_dir, self.protected, self.partner)
        self.tx = Transaction(self.protected, self.local, self.groups, self.page)
        self.checkpoints = Checkpoints(link, self.protected, self.local)
        self.injector = Injector(link, me.injections, self.groups)
        self.between = BetweenSteps(link, me.rank, lambda: self.members)
        self.server = Server(me.address, self.identity)
        self.feed = Feed(me.address, self.identity, me.rank)
        self.following = Following(self.protected, self.local, self.tx, self.groups)

    @property
    def generation(self) -> int:
        """The number of the generation that this rank is in."""
        return self.groups.generation.number

    # ------------------------------------------------------------------------------------- where it is

    @property
    def scope(self) -> Scope:
        """Where in the script this rank is. The page says whether the script may end there, however it ends."""
        return self._scope

    @scope.setter
    def scope(self, scope: Scope) -> None:
        self._scope = scope
        self.page.set("inside", scope in (Scope.STEP, Scope.BETWEEN))

    def leave_step(self) -> None:
        """User code between steps, or after the last: its collectives are run again, not unwound."""
        self.scope = Scope.OUTSIDE
        self.groups.outside = self.between
        self.groups.gated = False

    def stay_in_loop(self) -> None:
        self.scope = Scope.BETWEEN
        self.groups.outside = None
        self.groups.gated = False

    def is_behind(self, form: Form, owed: int = 0) -> bool:
        """It is given the state of a step, and has the code before that step's block still to run."""
        restarted = not self.holds and not self.spare
        return is_shown(form, self.checkpoints.begun(form.step) if restarted else self.local.begun, owed)

    # ------------------------------------------------------------------------------------- reports

    def report(self, stage: Stage, generation: int | None = None, fault: FaultReport | None = None) -> None:
        step, clean, undo = self.tx.standing()
        if not self.holds:
            step, clean, undo = -1, False, False
        self.link.send(
            Report(
                stage=stage.value,
                generation=self.generation if generation is None else generation,
                step=step,
                clean=clean,
                undo=undo,
                scope=self.scope.value,
                resumed=self.resumed,
                serve=self.server.address,
                fault=fault,
                local_steps=list(self.local.steps()),
                between=self.between.count,
                loadable=list(self.loadable),
                partly=list(self.partly),
                light=self.tx.shape,
                elastic=self.elastic and any(isinstance(b, Sampled) for b in self.local.cursors),
                feed=self.feed.address,
                joined=self.ahead.joined,
                follows=self.following.follows,
                broke=self.broke,
                withheld=self.protected.withheld.partition(";")[0],  # what it is; its own screen has said what to do
            )
        )

    def fault(self, kind: str, text: str, trace: str = "", retryable: str = "") -> FaultReport:
        return FaultReport(
            kind=kind,
            rank=self.index,
            incarnation=self.incarnation,
            step=self.tx.step,
            text=text,
            traceback=trace,
            retryable=retryable,
            at=time.time(),
        )

    def note_break(self) -> None:
        """A collective failed: a peer is gone, or the job is paused. Either way the fence is next."""
        if not self.link.newer_than(self.generation):
            why = self.groups.generation.failed
            found = classify_error("RuntimeError", why, self.link.welcome.retry_on)
            kind = found.kind if found else "communication"
            self.pending_fault = self.fault("exception", f"RuntimeError: {why}", retryable=kind)

    def fail_outside(self, why: str) -> None:
        """A fault where nothing can be run again: say so and wait for the next policy, which ends this process."""
        fault = self.fault("exception", f"RuntimeError: {why}", retryable="communication")
        self.report(Stage.TRAINING, fault=fault)
        order = self.link.wait_order(lambda o: o.generation > self.generation, 120.0)
        if order is not None:
            self.report(Stage.PAUSED, generation=order.generation)
            self.link.wait_order(lambda o: o.want == "stop", 600.0)
        raise RuntimeError(f"a collective outside a step failed and cannot be run again: {why}")


def is_shown(form: Form, begun: int, owed: int) -> bool:
    """Whether the block before the step of `form` is run for show: the code after it is still to be run.

    `begun`: the last step that the rank had begun; `owed`: the one that it was given in a try that failed, if there was
    one. Who was given it then has only to keep it now.
    """
    if form.past or form.step < 1 or begun >= form.step:
        return False
    return form.part in ("receive", "load") or (form.part == "keep" and owed == form.step)
