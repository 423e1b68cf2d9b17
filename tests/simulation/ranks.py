"""A rank's process as the simulator sees it: `onward/train/loop.py` and what it uses, with numbers for tensors.

The main thread is a generator. It yields a float to compute for that long, or a predicate to wait until it holds; the
listening thread is `receive`. Named points (`at`) are where faults strike. The state is a chain of mixed numbers, so a
step that is lost, applied twice, applied half or fed with gradients of another step shows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onward.agent.facts import Process
from onward.core.facts import FaultReport, Scope, Stage
from onward.wire.messages import (
    Copied,
    Form,
    Hello,
    KeepSlot,
    RankOrder,
    Recorded,
    Report,
    StoreReply,
    StoreRequest,
    Welcome,
)

from .fabric import MASK, Op, Request, mix
from .following import Ahead, Ended, Feed, Following
from .transaction import Transaction

if TYPE_CHECKING:
    from .scenario import Fault
    from .shells import SimAgent
    from .world import World

FETCH_S = 2.0  # how long a receiver waits for its source
PARTNER_S = 0.5  # how long an agent that keeps our local state is waited for
Thread = Generator[Any, None, Any]
Slots = tuple[tuple[int, int], ...]  # (step, local state)
_SEQUENCE = {"start": 0, "pause": 1, "save": 2, "form": 3, "run": 4, "finish": 5, "leave": 6, "stop": 7}


class Killed(BaseException):
    """The process ended at this point."""


class Hung(BaseException):
    """The main thread goes no further; the process and its listening thread live on."""


class Unwound(Exception):
    """A collective of the step failed."""


class Interrupted(Exception):
    """A newer generation was ordered while waiting for an answer."""


class NotJoined(Exception):
    """A generation could not be joined."""


class ScriptFailed(Exception):
    """The user's script ends with an error."""


class LeftLoop(Exception):
    """The user's script leaves its loop by itself."""


class UserError(Exception):
    """The user's code raised."""

    def __init__(self, text: str, retryable: str) -> None:
        super().__init__(text)
        self.retryable = retryable


@dataclass
class Page:
    """The status page."""

    step: int = -1
    launched: int = 0
    launched_at: float = 0.0
    progress_at: float = 0.0
    beat_at: float = 0.0
    section: int = 0
    step_s: float = 0.0
    gate: bool = False
    inside: bool = False


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


class RankProcess:
    """One process of a rank or of a spare."""

    def __init__(self, world: World, agent: SimAgent, process: Process) -> None:
        self.world, self.agent = world, agent
        self._known = process  # only for who we are now: a spare may be promoted
        self.number, self.rank, self.attempt = process.number, process.rank, process.attempt
        self.stand_in = process.stand_in
        self.serve = f"{agent.index}|{self.number}"
        self.alive, self.stopped = True, False
        self.page = Page()
        self.membership = Membership(0)
        self.members = tuple(range(world.scenario.world_size))  # ranks that take part
        self.requests: list[Request] = []
        self.tx = Transaction(self)
        self.feed, self.following, self.ahead = Feed(self), Following(self), Ahead(self)
        self._scope = Scope.SETUP
        self.committed = 0  # furthest step this process told its user about
        self.passed = 0  # steps whose block it has come out of, really or for show
        self.received = 0  # step of the state it was last given
        self.left_loop = self.failing = self.broke = False
        self._spare = True
        self._begun = self._resumed = False
        self._through: Stage | None = None
        self._ending = False
        self._loadable: tuple[int, ...] = ()
        self._partly: tuple[int, ...] = ()
        self._saved = -1
        self._results: list[int] = []  # of the collectives after step `_results_of`
        self._results_of = 0
        self._replay: list[int] = []
        self._pending_fault: FaultReport | None = None
        self._welcome: Welcome | None = None
        self._order: RankOrder | None = None
        self._called_softly = 0
        self._replies: dict[int, StoreReply | None] = {}
        self._next_id = 0
        self._main: Thread | None = None
        self._waiting: Callable[[], bool] | None = None
        self._turn = 0
        self._held = False
        self._inbox: list[Any] = []
        self._sent_until = 0.0
        self._step_started = 0.0
        self._partner: SimAgent | None = None  # the agent that keeps a copy of our local state
        self._partner_generation = 0

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.agent.index}.{self.number})"

    @property
    def is_spare(self) -> bool:
        return self._known.spare

    @property
    def incarnation(self) -> int:
        return self._known.incarnation

    @property
    def scope(self) -> Scope:
        return self._scope

    @scope.setter
    def scope(self, scope: Scope) -> None:
        self._scope, self.page.inside = scope, scope in (Scope.STEP, Scope.BETWEEN)

    @property
    def stuck(self) -> bool:
        return self.alive and (self.stopped or self._main is None)

    @property
    def patient(self) -> bool:
        """In code that may take as long as it likes: parked, done, before `init()` or after the loop."""
        return self.page.section > 0 or self.left_loop or self._welcome is None

    def doing(self) -> str:
        return f"is at step {self.tx.step} in generation {self.membership.generation}, scope {self.scope.value}"

    # ------------------------------------------------------------------------------------------ kernel

    def begin(self) -> None:
        self.page.progress_at = self.page.beat_at = self.world.now
        self._main = self._run()
        self._resume(self._turn)

    def _resume(self, turn: int) -> None:
        if not self.alive or turn != self._turn or self._main is None:
            return
        if self.stopped:
            self._held = True
            return
        self._turn += 1
        self._waiting = None
        try:
            wish = next(self._main)
        except StopIteration:
            self.die(0)
        except (ScriptFailed, UserError):
            self.die(1)
        except (Killed, Hung):
            self._main = None
        else:
            if isinstance(wish, float):
                self.world.after(wish, self._resume, self._turn)
            else:
                self._waiting = wish
                self.poke()

    def poke(self) -> None:
        """Something changed: the main thread may go on, a moment later."""
        if self._waiting is not None and not self.stopped and self._waiting():
            self._waiting = None
            r = self.world.rng.random()
            self.world.after(0.0 if r < 0.6 else 0.002 * r, self._resume, self._turn)

    def die(self, code: int) -> None:
        if not self.alive:
            return
        self.alive = False
        self._main = self._waiting = None
        if code == 0:
            self.world.promises.on_exit_0(self)
        self.world.note(f"{self} ended with {code}, step {self.tx.step}")
        self.world.fabric.lose(self, code == 0)
        self.feed.die()
        self.world.after(self.world.lag(0.003), self.agent.on_exit, self, code)

    def stop(self) -> None:
        if self._welcome is None and any(p.stopped for a in self.world.agents for p in a.children.values() if p.alive):
            self.die(-9)  # if all were stopped before they could speak, nobody could tell it from a slow start
        elif not self.stopped:
            self.stopped = True
            self.page.beat_at = self.world.now

    def carry_on(self) -> None:
        if not self.stopped or not self.alive:
            return
        self.world.note(f"{self} carries on")
        self.stopped = False
        inbox, self._inbox = self._inbox, []
        for message in inbox:
            self.receive(message)
        if self._held:
            self._held = False
            self._resume(self._turn)
        self.poke()

    def suffer(self, fault: Fault) -> None:
        """A fault from outside, at any moment."""
        match fault.kind:
            case "kill":
                self.die(-9)
            case "exit":
                self.die(3)
            case "leave":
                self.die(0)
            case "stop":
                self.stop()
            case "hang":
                self._main = self._waiting = None
            case "pause-process":
                self.stop()
                self.world.after(fault.for_s, self.carry_on)

    def at(self, point: str) -> None:
        """A named point of the main thread's life; a fault that waits for it strikes now."""
        fault = self.world.at_point(self, point, self.tx.step)
        if fault is None:
            return
        match fault.kind:
            case "kill" | "exit" | "leave":
                self.die({"kill": -9, "exit": 3, "leave": 0}[fault.kind])
                raise Killed
            case "kill-node":
                self.agent.die()
                self.die(-9)
                raise Killed
            case "hang":
                raise Hung
            case "stop":
                self.stop()
                if not self.alive:
                    raise Killed
            case "drop":
                self.world.fabric.cut(self)
            case "raise-communication":
                raise UserError("Connection reset by peer", "communication")
            case "raise-memory":
                raise UserError("uncorrectable ECC error", "memory")
            case "raise-once" | "bug":
                raise UserError(f"ValueError: {fault.kind}", "")

    # ------------------------------------------------------------------------------------------ link

    def send(self, message: Any) -> None:
        w = self.world
        self._sent_until = max(w.now + w.lag(0.001), self._sent_until)
        w.after(self._sent_until - w.now, self.agent.from_rank, self, message)

    def receive(self, message: Any) -> None:
        if not self.alive:
            return
        if self.stopped:
            self._inbox.append(message)
            return
        match message:
            case RankOrder():
                if self._order is None or _place(message) >= _place(self._order):
                    self._order = message
                if message.want == "pause" and message.soft:
                    self._called_softly = max(self._called_softly, message.generation)
                late = message.generation > self.membership.generation
                if message.want == "pause" and late and not message.soft:
                    self.world.fabric.abort(self.membership)
            case StoreReply():
                if message.id in self._replies:
                    self._replies[message.id] = message
            case Welcome():
                self._welcome = message
        self.poke()

    def newer_than(self, generation: int) -> bool:
        return self._order is not None and self._order.generation > generation

    def _wait_order(self, test: Callable[[RankOrder], bool]) -> Thread:
        def ready() -> bool:
            return self._order is not None and test(self._order)

        while not ready():
            yield ready
        return self._order

    def _is_soft(self) -> bool:
        return self._order is not None and self._order.want == "pause" and self._order.soft

    def _ask(self, generation: int, op: str, key: str, patient: bool = False, **fields: Any) -> Thread:
        self._next_id += 1
        number = self._next_id
        self._replies[number] = None
        self.send(StoreRequest(id=number, generation=generation, op=op, key=key, **fields))  # type: ignore[arg-type]

        def ready() -> bool:
            interrupted = self.newer_than(generation) and not (patient and self._is_soft())
            return self._replies[number] is not None or interrupted

        while not ready():
            yield ready
        reply = self._replies.pop(number)
        if reply is None:
            raise Interrupted
        return reply

    def _report(self, stage: Stage, generation: int | None = None, fault: FaultReport | None = None) -> None:
        step, clean, undo = self.tx.standing()
        if not self._begun:
            step, clean, undo = -1, False, False
        number = self.membership.generation if generation is None else generation
        if self.world.trace is not None:
            extra = f" fault {fault.text}" if fault else ""
            self.world.note(f"{self} {stage.value} g{number} step {step} clean {clean} undo {undo}{extra}")
        self.world.promises.on_report(self, stage, number)
        self.send(
            Report(
                stage=stage.value, generation=number, step=step, clean=clean, undo=undo, scope=self.scope.value,
                resumed=self._resumed, serve=self.serve, fault=fault, local_steps=list(self.tx.safe_steps()),
                between=len(self._results), light=self.tx.shape,
                loadable=list(self._loadable), partly=list(self._partly),
                feed=self.serve, follows=self.following.follows, joined=self.ahead.joined, broke=self.broke,
                elastic=self.world.scenario.elastic,
            )
        )  # fmt: skip

    def _fault(self, kind: str, text: str, retryable: str = "") -> FaultReport:
        at = 1e6 + self.world.now
        return FaultReport(kind, self.rank, self.incarnation, self.tx.step, text, retryable=retryable, at=at)

    # ------------------------------------------------------------------------------------------ partner

    def _choose_partner(self, peer: str, generation: int) -> None:
        self._partner = next((a for a in self.world.agents if peer and a.member.peer == peer), None)
        self._partner_generation = generation

    @property
    def keeper(self) -> SimAgent | None:
        """Who keeps our local state as far as we know; None until the next generation when it was once not there."""
        return self._partner

    def _share(self, step: int) -> Thread:
        """Whoever keeps our copy from now on may be another than before."""
        kept, value = self.tx.slots[step % 2]
        if kept == step:
            yield from self.keep_elsewhere(step, value)

    def keep_elsewhere(self, step: int, local: int) -> Thread:
        """`onward/train/partner.py`: returns when the copy is safe, or when there is nobody to keep it."""
        w, partner = self.world, self._partner
        if partner is None:
            return
        message = KeepSlot(
            attempt=self.attempt,
            rank=self.rank,
            generation=self._partner_generation,
            index=step % 2,
            step=step,
            data=f"{step} {local}".encode(),
        )
        if not w.network.reaches(self.agent.index, partner.index, "peers"):
            yield PARTNER_S
            self._partner = None
            return
        yield w.lag(0.002)
        self.at("keeping")
        if partner.running:
            partner.keep_for(message)
            yield w.lag(0.002)
        if not partner.running:
            self._partner = None

    # ------------------------------------------------------------------------------------------ the script

    def _run(self) -> Thread:
        w, s = self.world, self.world.scenario
        yield w.lag(0.05)
        self.at("boot")
        yield 0.001
        if not s.library:
            yield from self._plain_script()
            return
        self.send(Hello(process=self.number, pid=1000 + self.number))
        while self._welcome is None:
            yield lambda: self._welcome is not None
        self._spare = self._welcome.spare
        yield from self._join_first()
        yield w.rng.random() * s.setup_s
        self.at("setup")
        if s.setup_collective and self._spare:
            w.promises.on_replay(self, self._welcome.log)
        elif s.setup_collective:
            try:
                result = yield from self._collective(mix(self.tx.shared, 0))
                self.send(Recorded(scope="setup", index=0, data=str(result).encode()))
            except Unwound:
                yield from self._fail_outside("a collective in set-up failed")
        try:
            yield from self._loop(s.steps)
        except LeftLoop:
            yield from self._break_off()
        self.left_loop = True
        self.at("finish")
        if s.final_collective:
            yield from self._collective_between()
        yield w.lag(0.01)
        self.at("teardown")
        yield from self._linger()

    def _plain_script(self) -> Thread:
        for _ in range(self.world.scenario.steps):
            yield self.world.lag(0.02)
            self.at("forward")

    def _join_first(self) -> Thread:
        self._report(Stage.SETUP)
        if self._spare:
            return
        order = yield from self._wait_order(lambda o: o.want in ("form", "run"))
        self.at("join")
        if order.form is not None:
            self._choose_partner(order.form.partner, order.generation)
        try:
            yield from self._open(order.generation, "")
        except (NotJoined, Interrupted):
            yield from self._fail_outside("could not form the group")
        self._report(Stage.FORMED)
        self.at("joined")
        yield from self._wait_order(lambda o: o.generation > order.generation or o.want == "run")
        self._report(Stage.TRAINING)

    def _fail_outside(self, why: str) -> Thread:
        number = self.membership.generation
        self._report(Stage.TRAINING, fault=self._fault("exception", f"RuntimeError: {why}", "communication"))
        order = yield from self._wait_order(lambda o: o.generation > number)
        self._report(Stage.PAUSED, generation=order.generation)
        yield from self._wait_order(lambda o: o.want == "stop")
        raise ScriptFailed

    def _loop(self, n: int) -> Thread:
        self.scope = Scope.BETWEEN
        if self._spare:
            yield from self._park()
        else:
            yield from self.tx.first_publish()
            self.at("first")
            yield from self._begin_or_load()
        self._begun = True
        self.page.step = self.tx.step
        while True:
            self.scope = Scope.BETWEEN
            if self._pending_fault is not None or self.newer_than(self.membership.generation):
                if self._called_softly > self.membership.generation:
                    self.tx.begun = max(self.tx.begun, self.tx.step)  # the code after the last block has been run
                yield from self._recover(True)
            yield from self._save_if_due()
            self.feed.begin_if_wanted()
            if self.ahead.mind():
                self._report(Stage.TRAINING)
            if self.tx.step >= n:
                if (yield from self._finish()):
                    return
                continue
            k = self.tx.step
            counts = yield from self._step(k)
            if counts:
                yield from self._after_block()
            self._leave_if_due(k, counts)

    def _begin_or_load(self) -> Thread:
        self.scope = Scope.SETUP
        self._loadable, self._partly = self.agent.loadable(self.rank), self.agent.memory.steps_of(self.rank)[1]
        self._report(Stage.READY)
        self.at("ready")
        number = self.membership.generation

        def answered(o: RankOrder) -> bool:
            return o.generation > number or (o.want == "run" and o.form is not None and o.form.begin)

        order = yield from self._wait_order(answered)
        if order.generation > number:
            yield from self._recover(True)
        self.scope = Scope.BETWEEN
        if not self._begun:
            self._begun = True
            self._report(Stage.TRAINING)

    def _save_if_due(self) -> Thread:
        every, step = self.world.scenario.save_every, self.tx.step
        if not every or not step or step % every or step == self._saved:
            return
        self._saved = step
        self.at("save")
        leads = self.rank == self.agent.logic.first_rank
        yield from self.agent.memory.keep_local(self.rank, step, step, self.tx.local)
        if leads:
            yield from self.agent.memory.keep_shared(step, self.tx.shared)
        self.send(Copied(step=step, generation=self.membership.generation, shared=leads))

    def _after_block(self) -> Thread:
        """The user's code after a committed step: now and then an evaluation, with collectives."""
        self.scope = Scope.OUTSIDE
        every = self.world.scenario.eval_every
        if every and self.tx.step % every == 0:
            slow = self.world.scenario.eval_section
            self.page.section += slow
            for _ in range(2):
                yield self.world.lag(0.2 if slow else 0.01)
                self.at("between")
                yield from self._collective_between()
            self.page.section -= slow
            self.page.progress_at = self.world.now

    def _leave_if_due(self, k: int, counts: bool) -> None:
        """The last line of the loop's body."""
        s = self.world.scenario
        if k != s.leave_at or (s.asks and not counts):
            return
        if s.leaves == "exit":
            self.die(0)
            raise Killed
        raise LeftLoop

    def _break_off(self) -> Thread:
        if self.scope is not Scope.OUTSIDE:
            if self.world.scenario.leaves == "named":
                yield self.world.lag(0.03)  # what comes after the loop
            self.failing = True
            self._report(Stage.TRAINING, fault=self._fault("exception", "UsageError: the loop was left"))
            yield self.world.lag(0.01)
            raise ScriptFailed
        self.feed.end(Ended())
        self.broke, self._through = True, Stage.AFTER
        self._report(Stage.AFTER)

    def _finish(self) -> Thread:
        self.page.section = 1
        self.feed.end(Ended())
        self._report(Stage.DONE)
        self.at("done")
        number = self.membership.generation
        order = yield from self._wait_order(lambda o: o.generation > number or o.want in ("finish", "leave"))
        self.page.section = 0
        self.scope = Scope.BETWEEN
        if order.generation > number:
            return False
        self._begin_to_end()
        self.scope = Scope.OUTSIDE
        self._through = Stage.AFTER
        self._report(Stage.AFTER)
        return True

    def _begin_to_end(self) -> None:
        if not self._ending:
            self._ending = True
            self._results, self._replay = [], []

    def _linger(self) -> Thread:
        self._through = Stage.LEFT
        self._report(Stage.LEFT)
        while (yield from self._wait_to_leave(self.membership.generation)):
            self.at("lingering")
            yield from self._recover(False)

    def _wait_to_leave(self, number: int) -> Thread:
        order = yield from self._wait_order(lambda o: o.generation > number or o.want in ("leave", "stop"))
        return order.generation > number

    # ------------------------------------------------------------------------------------------ one step

    def _step(self, k: int) -> Thread:
        w = self.world
        self.tx.begin()
        self.scope = Scope.STEP
        self._step_started = self.page.progress_at = w.now
        self.feed.begun(k)
        try:
            yield from self._body(k)
        except Unwound:
            self._note_break()
        except UserError as e:
            if self.membership.broken:
                self._note_break()
            elif not e.retryable:
                self.failing = True
                self._report(Stage.TRAINING, fault=self._fault("exception", str(e)))
                yield w.lag(0.02)
                raise ScriptFailed from e
            else:
                if e.retryable == "memory":
                    self.tx.damaged()
                self._pending_fault = self._fault("exception", str(e), e.retryable)
        else:
            return (yield from self._end(k))
        return False

    def _body(self, k: int) -> Thread:
        """The user's block: draw, exchange, update, perhaps draw again."""
        w, s, tx = self.world, self.world.scenario, self.tx
        self.at("begin")
        tx.draw()
        yield w.lag(s.forward_s)
        self.at("forward")
        total = 0
        for i in range(s.collectives):
            if s.elastic:
                value = self._of_my_lanes(lambda lane, i=i: mix(mix(tx.shared, lane), k * 10 + i))
            else:
                value = mix(mix(tx.shared, tx.local), self.rank * 1000 + k * 10 + i)
            total = mix(total, (yield from self._collective(value)))
            self.at("reduced")
        self.at("gate")
        if not tx.gate(self.membership.broken):
            raise Unwound
        before = tx.shared
        tx.half_applied()
        yield w.lag(0.004)
        self.at("optimizer")
        tx.update(before, total)
        if s.late_collective:
            yield from self._collective(k)
        if s.noise:
            self.at("noise")
            tx.noise()

    def _of_my_lanes(self, compute: Callable[[int], int]) -> int:
        """What this rank contributes where micro-batches are dealt to those who take part: see `train/batches.py`."""
        at, n, total = self.members.index(self.rank), len(self.members), self.world.scenario.lanes
        return sum(compute(lane) for lane in range(total * at // n, total * (at + 1) // n)) & MASK

    def _end(self, k: int) -> Thread:
        if self.membership.broken:
            self._note_break()
            return False
        vote = yield from self.tx.end()
        self.tx.applied()
        self.at("applied")
        if self.tx.careful and not (yield from self._meet(k, vote)):
            return self.tx.step == k + 1
        self._committed(k)
        return True

    def _meet(self, k: int, vote: int) -> Thread:
        """Wait at the gate until every rank has finished the step. False when the job was interrupted meanwhile."""
        self.page.gate = True
        try:
            reply = yield from self._ask(self.membership.generation, "arrive", f"step/{k}", patient=True, amount=vote)
            if self._refused(reply):
                raise Interrupted
        except Interrupted:
            self.page.gate = False
            self.scope = Scope.BETWEEN
            yield from self._recover(False)
            if self.tx.step == k + 1:
                self._committed(k)
            return False
        self.at("meet")
        self.page.gate = False
        self.tx.settled(reply.number)
        return True

    def _refused(self, reply: StoreReply) -> bool:
        """The agent may have heard of the next generation before our question came: then the gate is not open."""
        return bool(reply.error)

    def _committed(self, k: int) -> None:
        self.world.promises.on_commit(self, k)
        self.committed = self.passed = k + 1
        self.feed.committed(k)
        self.page.step = self.tx.step
        self.page.step_s = self.world.now - self._step_started
        self.page.progress_at = self.world.now
        self._results, self._replay = [], []
        self.scope = Scope.OUTSIDE
        if not self._resumed:
            self._resumed = True
            self._report(Stage.TRAINING)
        self.at("committed")

    def _note_break(self) -> None:
        if not self.newer_than(self.membership.generation):
            self._pending_fault = self._fault("exception", "RuntimeError: a collective failed", "communication")

    def _collective(self, value: int) -> Thread:
        if self.membership.failed:
            raise Unwound
        self.at("enter")
        if self.tx.open:
            yield from self.tx.on_collective()
        page = self.page
        page.launched += 1
        page.launched_at = page.progress_at = self.world.now
        op = self.world.fabric.enter(self, value)
        self.at("entered")
        while not op.done:
            yield lambda: op.done
        page.launched_at, page.progress_at = 0.0, self.world.now
        if op.failed:
            raise Unwound
        self.feed.result(op.result)
        if self.tx.open:
            self.tx.begun = self.tx.step  # everybody is in this block, so nobody is in what came before it
        return op.result

    def _collective_between(self) -> Thread:
        """A collective between steps, or after the last: not unwound but run again, or told by those who have it."""
        while not self._replay:
            try:
                value = mix(self.tx.shared, len(self._results))
                if self.world.scenario.elastic:
                    value = self._of_my_lanes(lambda _, value=value: value)
                result = yield from self._collective(value)
            except Unwound:
                self._note_break()
                yield from self._recover(False)
                self.scope = Scope.OUTSIDE
            else:
                break
        else:
            result = self._replay.pop(0)
        self.world.promises.on_result_between(self, len(self._results), result)
        self._results.append(result)
        self._results_of = self.tx.step

    def _forget_old_results(self) -> None:
        """This rank may have stood at the gate of the next step: then its results are of a stretch that is over."""
        if self._results_of != self.tx.step:
            self._results = []

    def _level(self, generation: int, caught_up: bool) -> Thread:
        """All ranks of a new generation compare how many collectives they have run since the last commit."""
        self._forget_old_results()
        mine = -1 if caught_up else len(self._results)
        yield from self._store(generation, "set", f"between/{self.rank}", value=str(mine).encode())
        counts = []
        for r in self.members:
            reply = yield from self._store(generation, "get", f"between/{r}")
            counts.append(int(reply.value))
        known = {r: c for r, c in zip(self.members, counts, strict=True) if c >= 0}
        if not known:
            return
        most, least = max(known.values()), min(known.values())
        if self.rank == min(r for r, c in known.items() if c == most):
            for i in range(least, most):
                yield from self._store(generation, "set", f"result/{i}", value=str(self._results[i]).encode())
        elif mine >= 0:
            self._replay = []
            for i in range(mine, most):
                reply = yield from self._store(generation, "get", f"result/{i}")
                self._replay.append(int(reply.value))

    # ------------------------------------------------------------------------------------------ recovery

    def _park(self) -> Thread:
        self.page.section = 1
        yield self.world.lag(self.world.scenario.forward_s)
        self.at("rehearse")
        assert self._welcome is not None
        if self._welcome.step >= 2:
            self._leave_if_due(self._welcome.step - 2, False)
        self._report(Stage.PARKED, generation=0)
        self.at("parked")
        last = 0
        while self._spare:
            order = yield from self._wait_order(
                lambda o, g=last: (
                    (o.want == "form" and o.generation > g) or self.following.concerns(o) or self.ahead.concerns(o)
                )
            )
            if order.want != "form":
                if self.ahead.mind():
                    self.report_parked(self.following.claimed)
                if self.following.concerns(order):
                    yield from self.following.follow(order)
                continue
            last = order.generation
            entered = yield from self._arrive_by_ghost(order)
            if not entered and self.holds:
                self._spare = False  # it comes to the fence as any rank does
            elif not entered and self._spare:
                self._report(Stage.PARKED, generation=0, fault=self._pending_fault)
                self._pending_fault = None
        self.page.section = 0

    @property
    def order(self) -> RankOrder | None:
        return self._order

    @property
    def is_wanted(self) -> bool:
        """There is a place for this process: nobody waits for what it does beside the others."""
        return self._order is not None and self._order.want == "form"

    @property
    def holds(self) -> bool:
        return self._begun

    @holds.setter
    def holds(self, value: bool) -> None:
        self._begun = value

    def report_parked(self, generation: int) -> None:
        self._report(Stage.PARKED, generation=generation)

    def stand_at(self, step: int, shared: int, slots: Slots, light: int, between: tuple[int, ...]) -> None:
        """What it holds by following another is its own from now on."""
        for slot in slots:
            self.tx.slots[slot[0] % 2] = slot
        self.tx.received(shared, step)
        self.tx.go_light(light)
        self.received = step
        self._results, self._results_of = list(between), step
        self.world.promises.on_followed(self)

    def _recover(self, ghosts: bool) -> Thread:
        while True:
            order = yield from self._stand()
            entered = yield from (self._arrive_by_ghost(order) if ghosts else self._enter(order))
            if entered:
                return

    def _arrive_by_ghost(self, order: RankOrder) -> Thread:
        """Enter; a rank that never got past its last step runs the block for show, to reach the code after it."""
        form = order.form
        assert form is not None
        restarted = not self._begun and not self._spare
        if restarted:
            self.tx.begun = self.agent.saved_local(self.rank, form.step)[1]
        if not self._must_show(form):
            return (yield from self._enter(order))
        self._results, self._replay = [], []
        yield self.world.lag(self.world.scenario.forward_s)
        entered = yield from self._enter(order)
        if entered:
            self.passed = form.step
            yield from self._after_block()
        self._leave_if_due(form.step - 1, entered)
        return entered

    def _must_show(self, form: Form) -> bool:
        """Also when it was given the state in an earlier try that failed, and now only has to keep it."""
        return max(self.passed, self.tx.begun) < form.step and not form.through and not form.past

    def _stand(self) -> Thread:
        number = self.membership.generation
        fault, self._pending_fault = self._pending_fault, None
        self.at("stand")
        if fault is not None:
            self._report(Stage.TRAINING, fault=fault)
        self._resumed = False
        while True:
            order = yield from self._wait_order(lambda o, n=number: o.generation > n)
            self.world.fabric.abort(self.membership)
            self.feed.end_at_fence(order.generation, self._results if self._results_of == self.tx.step else [])
            if order.want == "pause":
                wanted = order.generation
                self._report(Stage.PAUSED, generation=wanted)
                self.at("paused")
                order = yield from self._wait_order(lambda o, g=wanted: o.generation > g or o.want != "pause")
            if order.want == "save" and order.form is not None:
                yield from self._save_here(order.form, order.generation)
                wanted = order.generation
                order = yield from self._wait_order(lambda o, g=wanted: o.generation > g or o.want != "save")
            if order.want == "form" and order.form is not None:
                return order
            number = max(number, order.generation - 1)
            if order.want == "stop":
                raise ScriptFailed
            yield 0.001

    def _save_here(self, form: Form, generation: int) -> Thread:
        self.at("keep")
        if form.part == "undo":
            self.tx.take_back(form.step)
        else:
            self.tx.keep()
        yield from self.agent.memory.keep_shared(form.step, self.tx.shared)
        self.at("kept")
        self.send(Copied(step=form.step, generation=generation, shared=True))

    def _enter(self, order: RankOrder) -> Thread:
        form = order.form
        assert form is not None
        was_parked = self._spare
        try:
            self.at("open")
            yield from self._open(order.generation, form.joined, form.members)
            self._choose_partner(form.partner, order.generation)
            self.page.launched = 0
            yield from self._arrive(form, order.generation)
            yield from self._share(form.step)
            if form.through:
                self._begin_to_end()
            if form.between and form.part != "load":
                past = self.tx.begun >= form.step or form.past
                done = form.part == "receive" and past and not form.through
                yield from self._level(order.generation, done)
        except (NotJoined, Interrupted) as e:
            self.world.fabric.abort(self.membership)
            if not self.newer_than(order.generation):
                text = f"could not join generation {order.generation}: {e}"
                self._pending_fault = self._fault("exception", text, "communication")
            return False
        self._spare, self._begun = False, True
        self._report(Stage.FORMED)
        self.at("formed")
        goes_on = ("run", "finish", "leave")
        after = yield from self._wait_order(lambda o: o.generation > order.generation or o.want in goes_on)
        if after.generation > order.generation:
            return False
        self._resumed = False
        self.page.step = self.tx.step
        self.page.progress_at = self.world.now
        if was_parked:
            self.page.section = 0  # from here on it is a rank like the others
        self._report(self._through or Stage.TRAINING)
        return True

    def _open(self, generation: int, joined: str, members: Sequence[int] = ()) -> Thread:
        """Meet the others through the generation's store and connect to them, where that is not done already."""
        w = self.world
        self.members = tuple(members) or tuple(range(w.scenario.world_size))
        m = self.membership = Membership(generation)
        there = self.ahead.take(joined)
        if joined:
            if len(there) < w.scenario.world_size:
                w.promises.on_not_joined(self, joined)
            m.key = (generation, joined)
            m.peers += there
            w.promises.on_joined(self)
            return
        mine = f"{self.agent.index}.{self.number}"
        yield from self._store(generation, "set", f"{generation}/{self.rank}", value=mine.encode())
        names = []
        for r in self.members:
            reply = yield from self._store(generation, "get", f"{generation}/{r}")
            names.append(reply.value.decode())
        yield w.lag(0.01)
        self.at("connect")
        m.key = (generation, *names)
        for name in names:
            index, number = map(int, name.split("."))
            peer = w.agents[index].children.get(number)
            if peer is None or not peer.alive or not w.network.reaches(self.agent.index, index, "ranks"):
                raise NotJoined(f"connection to process {name} refused")
            m.peers.append(peer)
        w.promises.on_joined(self)

    def _store(self, generation: int, op: str, key: str, **fields: Any) -> Thread:
        reply = yield from self._ask(generation, op, key, **fields)
        if reply.error:
            raise NotJoined(reply.error)
        return reply

    def _arrive(self, form: Form, generation: int) -> Thread:
        tx = self.tx
        self.world.promises.on_arrive(self, form)
        if form.part == "receive":
            tx.forget()
            request = yield from self._fetch(form.source, generation)
            if form.fresh:
                yield from tx.publish_as_in_set_up(form.step)
            if not self._begun and not self._spare:
                tx.slots[form.step % 2] = (form.step, self.agent.saved_local(self.rank, form.step)[0])
            tx.received(request.value, form.step)
            tx.learn_from(request.learnt)
        elif form.part == "load":
            tx.forget()
            self.at("load")
            yield self.world.lag(self.world.scenario.transfer_s)
            shared, (local, _) = self.agent.saved_shared(form.step), self.agent.saved_local(self.rank, form.step)
            tx.slots[form.step % 2] = (form.step, local)
            tx.received(shared, form.step)
        elif form.part == "undo":
            tx.take_back(form.step)
        else:
            tx.keep()
        tx.go_light(form.light)
        if form.serves:
            yield from self._serve(form.serves, generation)
        self.world.promises.on_arrived(self, form)

    def _fetch(self, source: str, generation: int) -> Thread:
        request = self.world.fabric.ask_state(self, source, generation)
        self.at("receive")
        self.world.after(FETCH_S, self.world.fabric._fail, request)
        while not (request.done or request.failed or self.newer_than(generation)):
            yield lambda: request.done or request.failed or self.newer_than(generation)
        if self.newer_than(generation) and not request.done:
            request.failed = True
            raise Interrupted
        if request.failed:
            raise NotJoined("the source of the state is gone")
        return request

    def _serve(self, count: int, generation: int) -> Thread:
        def done() -> int:
            return sum(r.done for r in self.requests if r.generation == generation)

        self.at("serve")
        while done() < count:
            if self.newer_than(generation):
                for request in self.requests:
                    self.world.fabric._fail(request)
                raise Interrupted
            waiting = [r for r in self.requests if not r.started]
            for request in waiting:
                self.world.fabric.serve(self, request)
            yield lambda: done() >= count or self.newer_than(generation) or any(not r.started for r in self.requests)


def _place(order: RankOrder) -> tuple[int, int]:
    return (order.generation, _SEQUENCE[order.want])
