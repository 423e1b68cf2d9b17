"""The agent's bookkeeping, without any I/O: what is wanted, what is there, what follows.

It is fed messages, exits and ticks, and answers with effects for the process around it to carry out. The simulator
drives the same code over a simulated network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from onward.agent.kvstore import GenerationStore
from onward.core.facts import FaultReport, Progress, RankFacts, Scope, Stage
from onward.wire.messages import (
    AgentFacts,
    Hello,
    Inject,
    Injected,
    Injection,
    Orders,
    RankOrder,
    Recorded,
    Report,
    StoreReply,
    StoreRequest,
    Welcome,
)

SPARE_TRIES = 3
CALM_STEPS = 3  # of every rank in a generation before a spare is built: it takes the cores and memory of the ranks


# ---------------------------------------------------------------------------------------------------- effects


@dataclass(frozen=True)
class StartProcess:
    process: int
    rank: int
    incarnation: int
    spare: bool
    attempt: int


@dataclass(frozen=True)
class KillProcess:
    process: int
    gently: bool = False  # SIGTERM first, with the grace period


@dataclass(frozen=True)
class SendRank:
    process: int
    message: object


@dataclass(frozen=True)
class Say:
    """A sentence for people."""

    text: str


Effect = StartProcess | KillProcess | SendRank | Say


# ---------------------------------------------------------------------------------------------------- state


@dataclass
class Process:
    """One process of a rank, or of a spare for it."""

    number: int
    rank: int
    incarnation: int
    spare: bool  # waits for its rank's place
    stand_in: bool  # was started to take over a place, so it runs alone up to its first step
    attempt: int
    pid: int = 0
    attached: bool = False
    report: Report | None = None
    exit_code: int | None = None
    fault: FaultReport | None = None
    progress: Progress = field(default_factory=Progress)
    sent: RankOrder | None = None
    killed: bool = False

    @property
    def alive(self) -> bool:
        return self.exit_code is None

    @property
    def parked(self) -> bool:
        return self.alive and self.report is not None and self.report.stage == Stage.PARKED.value


@dataclass(frozen=True)
class AgentSettings:
    """What an agent is told at its start."""

    node: int
    first_rank: int
    local_ranks: int
    world_size: int
    spares: str = "each"
    address: str = "127.0.0.1"
    retry_on: tuple[str, ...] = ()
    injections: tuple[Injection, ...] = ()


class AgentLogic:
    """See the module's docstring."""

    def __init__(
        self,
        settings: AgentSettings,
        paths: Callable[[Process], tuple[str, str]],
        local_steps: Callable[[Process], tuple[int, ...]],
    ) -> None:
        self.settings = settings
        self._paths = paths  # of a process: (status page, directory of its rank's local state)
        self._local_steps = local_steps  # which steps that directory holds
        self.processes: dict[int, Process] = {}
        self.current: dict[int, int] = {}  # rank -> process
        self.orders: Orders | None = None
        self.term = 0
        self.record = b""
        self.version = 0
        self.stopping = False
        self.dropped = 0  # messages refused because they were from the past
        self.late_s = 0.0  # how late our own ticks come
        self.injections = list(settings.injections)
        self._next = 0
        self._stores: dict[int, GenerationStore] = {}
        self._log: dict[int, dict[int, bytes]] = {}  # rank -> index -> recorded collective
        self._spare_tries: dict[int, int] = {}
        self._calm_from = (-1, 0)  # (generation, the furthest step when it was first seen running)
        self.changed = True

    # ------------------------------------------------------------------------------------------ orders

    def on_orders(self, orders: Orders) -> list[Effect]:
        """Everything the manager wants, as of now."""
        if orders.term < self.term or (
            self.orders is not None
            and orders.term == self.orders.term
            and orders.version < self.orders.version
        ):
            self.dropped += 1
            return []
        if self.orders is not None and orders.attempt != self.orders.attempt:
            self._log.clear()
            self._spare_tries.clear()
        self.term = orders.term
        self.orders = orders
        if orders.job:
            self.record = orders.job
        self.changed = True
        return self.reconcile()

    def reconcile(self) -> list[Effect]:
        """What follows from the orders and what is there. Idempotent."""
        if self.orders is None:
            return []
        effects: list[Effect] = []
        for order in self.orders.ranks:
            effects += self._reconcile_rank(order, self.orders)
        effects += self._drop_old_spares(self.orders)
        return effects

    def _reconcile_rank(self, order: RankOrder, orders: Orders) -> list[Effect]:
        number = self.current.get(order.rank)
        now = self.processes.get(number) if number is not None else None
        if self.stopping or order.want == "stop":
            return self._kill(now, gently=True) if now is not None and now.alive else []
        if now is None or now.incarnation < order.incarnation:
            if now is not None and now.alive:
                # Its successor starts when the kernel says that it is gone. A plain script may want to save something.
                return self._kill(now, gently=not now.attached)
            return self._fill(order, orders)
        if now.incarnation > order.incarnation or not now.attached or not now.alive:
            return []
        if order.want in ("pause", "form", "run", "finish") and now.sent != order:
            now.sent = order
            return [SendRank(now.number, order)]
        return []

    def _fill(self, order: RankOrder, orders: Orders) -> list[Effect]:
        """Give the rank a process: a parked spare where there is one, else a new one."""
        if order.want != "start":
            for p in self.processes.values():
                if p.spare and p.rank == order.rank and p.parked and p.attempt == orders.attempt:
                    return [*self._promote(p, order, "spare"), *self._forward(p, order)]
        stand_in = order.want != "start"
        effects: list[Effect] = []
        for p in self.processes.values():
            if p.spare and p.rank == order.rank and p.alive:
                if stand_in and p.attempt == orders.attempt and p.attached:  # on its way: quicker than a new one
                    return self._promote(p, order, "half-built spare")
                effects += self._kill(p)
        p = self._new(order.rank, order.incarnation, spare=False, stand_in=stand_in, attempt=orders.attempt)
        self.current[order.rank] = p.number
        return [*effects, StartProcess(p.number, p.rank, p.incarnation, stand_in, p.attempt)]

    def _promote(self, p: Process, order: RankOrder, what: str) -> list[Effect]:
        p.spare, p.incarnation = False, order.incarnation
        self.current[order.rank] = p.number
        self.changed = True
        pending = [SendRank(p.number, Inject(injection=i)) for i in self.injections if i.rank == p.rank]
        return [Say(f"rank {order.rank}: the {what} (pid {p.pid}) takes over"), *pending]

    def _forward(self, p: Process, order: RankOrder) -> list[Effect]:
        p.sent = order
        return [SendRank(p.number, order)]

    def _new(self, rank: int, incarnation: int, spare: bool, stand_in: bool, attempt: int) -> Process:
        self._next += 1
        p = Process(self._next, rank, incarnation, spare, stand_in or spare, attempt)
        self.processes[p.number] = p
        self.changed = True
        return p

    def _kill(self, p: Process, gently: bool = False) -> list[Effect]:
        if p.killed:
            return []
        p.killed = True
        return [KillProcess(p.number, gently)]

    def stop(self) -> list[Effect]:
        """End everything, in order."""
        self.stopping = self.changed = True
        return [e for p in self.processes.values() if p.alive for e in self._kill(p, gently=not p.spare)]

    def _drop_old_spares(self, orders: Orders) -> list[Effect]:
        effects: list[Effect] = []
        over = orders.phase in ("Finishing", "Succeeded", "Failed") or self.stopping
        for p in list(self.processes.values()):
            if p.spare and p.alive and (over or p.attempt != orders.attempt):
                effects += self._kill(p)
        return effects

    # ------------------------------------------------------------------------------------------ spares

    def want_spares(self, room: Callable[[], bool] = lambda: True) -> list[Effect]:
        """Start a spare where one is missing. One at a time: building it takes the ranks' cores.

        `room` says whether there is memory for one more process.
        """
        o = self.orders
        if o is None or self.stopping or self.settings.spares == "none" or o.phase != "Running":
            return []
        alive = [p for p in self.processes.values() if p.spare and p.alive]
        if any(not p.parked for p in alive):
            return []
        have = {p.rank for p in alive}
        ranks = [r for r in sorted(self.current) if r not in have]
        if (self.settings.spares == "one" and have) or not self._calm(o.generation):
            return []
        for rank in ranks:
            p = self.processes[self.current[rank]]
            begun = p.alive and p.report is not None and p.report.resumed
            if begun and self._spare_tries.get(rank, 0) < SPARE_TRIES and room():
                self._spare_tries[rank] = self._spare_tries.get(rank, 0) + 1
                s = self._new(rank, 0, spare=True, stand_in=True, attempt=o.attempt)
                return [StartProcess(s.number, rank, 0, True, s.attempt)]
        return []

    def _calm(self, generation: int) -> bool:
        steps = [self.processes[n].progress.step for n in self.current.values()]
        if self._calm_from[0] != generation:
            self._calm_from = (generation, max(steps, default=-1))
        return min(steps, default=-1) >= self._calm_from[1] + CALM_STEPS

    # ------------------------------------------------------------------------------------------ ranks

    def on_started(self, number: int, pid: int) -> None:
        if number in self.processes:
            self.processes[number].pid = pid
            self.changed = True

    def on_rank(self, number: int, message: object) -> list[Effect]:
        """A message from the process `number`."""
        p = self.processes.get(number)
        if p is None or not p.alive:
            self.dropped += 1
            return []
        match message:
            case Hello():
                p.attached = True
                self.changed = True
                return [SendRank(number, self._welcome(p)), *self.reconcile()]
            case Report():
                p.report = message
                if message.fault is not None:
                    p.fault = replace(message.fault, rank=p.rank, incarnation=p.incarnation)
                elif message.stage in (Stage.FORMED.value, Stage.PARKED.value):
                    p.fault = None
                    if message.stage == Stage.PARKED.value:
                        self._spare_tries[p.rank] = 0
                self.changed = True
            case Recorded() if self.orders is None or p.attempt == self.orders.attempt:
                self._log.setdefault(p.rank, {})[message.index] = message.data
            case StoreRequest():
                return self._on_store(p, message)
            case Injected():
                self.injections = [i for i in self.injections if i.id != message.id]
            case _:
                self.dropped += 1
        return []

    def _welcome(self, p: Process) -> Welcome:
        page, local_dir = self._paths(p)
        log = self._log.get(p.rank, {}) if p.stand_in else {}
        step = self.processes[self.current[p.rank]].progress.step if p.rank in self.current else -1
        others = [q.progress.step for q in self.processes.values() if q.alive and not q.spare]
        return Welcome(
            rank=p.rank,
            local_rank=p.rank - self.settings.first_rank,
            world_size=self.settings.world_size,
            incarnation=p.incarnation,
            spare=p.stand_in,
            page=page,
            local_dir=local_dir,
            step=max([step, *others, 0]),
            injections=[i for i in self.injections if i.rank == p.rank and not p.spare],
            retry_on=list(self.settings.retry_on),
            address=self.settings.address,
            log=[log.get(i, b"") for i in range(max(log, default=-1) + 1)],
        )

    def _on_store(self, p: Process, q: StoreRequest) -> list[Effect]:
        now = self.orders.generation if self.orders is not None else 0
        if q.generation != now or p.spare:
            self.dropped += 1
            state = "over" if q.generation < now else "not the current one"
            return [SendRank(p.number, StoreReply(id=q.id, error=f"generation {q.generation} is {state}"))]
        store = self._stores.get(q.generation)
        if store is None:
            self._stores = {q.generation: GenerationStore(q.generation, self.settings.world_size)}
            store = self._stores[q.generation]
        return [SendRank(number, reply) for number, reply in store.handle(p.number, q)]

    def on_exit(self, number: int, code: int) -> list[Effect]:
        p = self.processes.get(number)
        if p is None or not p.alive:
            return []
        p.exit_code = code
        self.changed = True
        if p.spare or self.current.get(p.rank) != number:
            del self.processes[number]
        self._forget_dead()
        return self.reconcile()

    def _forget_dead(self) -> None:
        current = set(self.current.values())
        for number in [n for n, p in self.processes.items() if not p.alive and n not in current]:
            del self.processes[number]

    def inject(self, injection: Injection) -> list[Effect]:
        self.injections.append(injection)
        number = self.current.get(injection.rank)
        p = self.processes.get(number) if number is not None else None
        return [SendRank(p.number, Inject(injection=injection))] if p is not None and p.attached and p.alive else []

    # ------------------------------------------------------------------------------------------ facts

    def facts(self, now: float) -> AgentFacts:
        self.version += 1
        self.changed = False
        ranks = [self._rank_facts(self.processes[n]) for _, n in sorted(self.current.items())]
        seen = self.orders.version if self.orders is not None else 0
        return AgentFacts(
            node=self.settings.node,
            version=self.version,
            term=self.term,
            orders_version=seen,
            ranks=ranks,
            record=self.record,
            stopping=self.stopping,
            now=now,
            late_s=self.late_s,
        )

    def _rank_facts(self, p: Process) -> RankFacts:
        r = p.report
        stage = Stage(r.stage) if r is not None else Stage.STARTING
        if not p.alive:
            stage = Stage.EXITED
        return RankFacts(
            rank=p.rank,
            node=self.settings.node,
            incarnation=p.incarnation,
            pid=p.pid,
            stage=stage,
            generation=r.generation if r else 0,
            library=p.attached,
            step=r.step if r else -1,
            clean=r.clean if r else False,
            undo=r.undo if r else False,
            scope=Scope(r.scope) if r else Scope.SETUP,
            local_steps=self._local_steps(p),
            resumed=r.resumed if r else False,
            serve=r.serve if r else "",
            between=r.between if r else 0,
            light=r.light if r else 0,
            exit_code=p.exit_code,
            fault=p.fault,
            progress=p.progress,
        )
