"""A rank's process as the simulator sees it: a process, and its link to the agent, as in `onward/train/link.py`.

The main thread is a generator (`script`, `block`, `between`, `fence`): it yields a float to compute for that long, or a
predicate to wait until it holds. The listening thread is `receive`. Named points (`at`) are where faults strike. The
state is a chain of mixed numbers, so a step that is lost, applied twice, applied half or fed with gradients of another
step shows at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onward.agent.facts import Process
from onward.core.facts import FaultReport, Scope, Stage
from onward.wire.messages import RankOrder, Report, StoreReply, StoreRequest, Welcome

from .between import Between
from .block import Block
from .fabric import Request
from .fence import Fence, Membership
from .following import Ahead, Feed, Following
from .partner import Partner
from .script import Script
from .transaction import Transaction
from .unwinding import Hung, Interrupted, Killed, NotJoined, ScriptFailed, Thread, UserError

if TYPE_CHECKING:
    from .scenario import Fault
    from .shells import SimAgent
    from .world import World

Slots = tuple[tuple[int, int], ...]  # (step, local state)
_SEQUENCE = {"start": 0, "pause": 1, "save": 2, "form": 3, "run": 4, "finish": 5, "leave": 6, "stop": 7}


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
        self.script, self.block, self.between = Script(self), Block(self), Between(self)
        self.fence, self.partner = Fence(self), Partner(self)
        self.feed, self.following, self.ahead = Feed(self), Following(self), Ahead(self)
        self._scope = Scope.SETUP
        self.committed = 0  # furthest step this process told its user about
        self.passed = 0  # steps whose block it has come out of, really or for show
        self.received = 0  # step of the state it was last given
        self.left_loop = self.failing = self.broke = False
        self.parked = True
        self.holds = False  # the state of the job: there is something to go on from
        self.resumed = False
        self.through: Stage | None = None
        self.loadable: tuple[int, ...] = ()
        self.partly: tuple[int, ...] = ()
        self.pending_fault: FaultReport | None = None
        self.welcome: Welcome | None = None
        self.order: RankOrder | None = None
        self.called_softly = 0
        self._replies: dict[int, StoreReply | None] = {}
        self._next_id = 0
        self._main: Thread | None = None
        self._waiting: Callable[[], bool] | None = None
        self._turn = 0
        self._held = False
        self._inbox: list[Any] = []
        self._sent_until = 0.0

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
        return self.page.section > 0 or self.left_loop or self.welcome is None

    @property
    def is_wanted(self) -> bool:
        """There is a place for this process: nobody waits for what it does beside the others."""
        return self.order is not None and self.order.want == "form"

    def doing(self) -> str:
        return f"is at step {self.tx.step} in generation {self.membership.generation}, scope {self.scope.value}"

    # ------------------------------------------------------------------------------------------ kernel

    def begin(self) -> None:
        self.page.progress_at = self.page.beat_at = self.world.now
        self._main = self.script.run()
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
        if self.welcome is None and any(p.stopped for a in self.world.agents for p in a.children.values() if p.alive):
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
                if self.order is None or _place(message) >= _place(self.order):
                    self.order = message
                if message.want == "pause" and message.soft:
                    self.called_softly = max(self.called_softly, message.generation)
                late = message.generation > self.membership.generation
                if message.want == "pause" and late and not message.soft:
                    self.world.fabric.abort(self.membership)
            case StoreReply():
                if message.id in self._replies:
                    self._replies[message.id] = message
            case Welcome():
                self.welcome = message
        self.poke()

    def newer_than(self, generation: int) -> bool:
        return self.order is not None and self.order.generation > generation

    def wait_order(self, test: Callable[[RankOrder], bool]) -> Thread:
        def ready() -> bool:
            return self.order is not None and test(self.order)

        while not ready():
            yield ready
        return self.order

    def _is_soft(self) -> bool:
        return self.order is not None and self.order.want == "pause" and self.order.soft

    def ask(self, generation: int, op: str, key: str, patient: bool = False, **fields: Any) -> Thread:
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

    def store(self, generation: int, op: str, key: str, **fields: Any) -> Thread:
        reply = yield from self.ask(generation, op, key, **fields)
        if reply.error:
            raise NotJoined(reply.error)
        return reply

    def report(self, stage: Stage, generation: int | None = None, fault: FaultReport | None = None) -> None:
        step, clean, undo = self.tx.standing()
        if not self.holds:
            step, clean, undo = -1, False, False
        number = self.membership.generation if generation is None else generation
        if self.world.trace is not None:
            extra = f" fault {fault.text}" if fault else ""
            self.world.note(f"{self} {stage.value} g{number} step {step} clean {clean} undo {undo}{extra}")
        self.world.promises.on_report(self, stage, number)
        self.send(
            Report(
                stage=stage.value, generation=number, step=step, clean=clean, undo=undo, scope=self.scope.value,
                resumed=self.resumed, serve=self.serve, fault=fault, local_steps=list(self.tx.safe_steps()),
                between=len(self.between.results), light=self.tx.shape,
                loadable=list(self.loadable), partly=list(self.partly),
                feed=self.serve, follows=self.following.follows, joined=self.ahead.joined, broke=self.broke,
                elastic=self.world.scenario.elastic,
            )
        )  # fmt: skip

    def fault(self, kind: str, text: str, retryable: str = "") -> FaultReport:
        at = 1e6 + self.world.now
        return FaultReport(kind, self.rank, self.incarnation, self.tx.step, text, retryable=retryable, at=at)

    def report_parked(self, generation: int) -> None:
        self.report(Stage.PARKED, generation=generation)

    def stand_at(self, step: int, shared: int, slots: Slots, light: int, between: tuple[int, ...]) -> None:
        """What it holds by following another is its own from now on."""
        for slot in slots:
            self.tx.slots[slot[0] % 2] = slot
        self.tx.received(shared, step)
        self.tx.go_light(light)
        self.tx.begun = max(self.tx.begun, step)
        self.received = step
        self.between.take(step, between)


def _place(order: RankOrder) -> tuple[int, int]:
    return (order.generation, _SEQUENCE[order.want])
