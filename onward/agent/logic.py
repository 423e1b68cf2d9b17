"""The agent's bookkeeping, without any I/O: what is wanted, what is there, what follows.

It is fed messages, exits and ticks, and answers with effects for the process around it to carry out. The simulator
drives the same code over a simulated network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from onward.agent.effects import Effect, FetchLocal, KillProcess, Say, SendPeer, SendRank, StartProcess
from onward.agent.facts import Process, rank_facts
from onward.agent.keeper import Keeper
from onward.agent.saving import Saving
from onward.agent.settings import AgentSettings
from onward.agent.spares import Spares
from onward.agent.stores import Stores
from onward.core.facts import RankFacts, Stage
from onward.wire.messages import (
    AgentFacts,
    Copied,
    Hello,
    Inject,
    Injected,
    Injection,
    Orders,
    Plan,
    RankOrder,
    Recorded,
    Report,
    StoreReply,
    StoreRequest,
    Times,
    Welcome,
)
from onward.wire.peers import KeepLog, Kept, PeerReply, PeerStore


class AgentLogic:
    """See the module's docstring."""

    def __init__(
        self,
        settings: AgentSettings,
        paths: Callable[[Process], tuple[str, str]],
        local_steps: Callable[[Process], tuple[int, ...]],
        memory_steps: Callable[[int], tuple[tuple[int, ...], tuple[int, ...]]] = lambda rank: ((), ()),
        begun: Callable[[Process], int] = lambda p: -1,
        early_steps: Callable[[Process], tuple[int, ...]] = lambda p: (),
        is_dying: Callable[[int], bool] = lambda pid: False,
    ) -> None:
        self.settings = settings
        self.node = -1  # our place in the job
        self.world_size = 0
        self.keeper = Keeper()
        self._paths = paths  # of a process: (status page, directory of its rank's local state)
        self._local_steps = local_steps  # which steps that directory holds
        self._memory_steps = memory_steps  # of a rank: what this node's memory holds whole, and of its local state
        self._begun = begun  # the last step whose block a process's rank had begun
        self._early_steps = early_steps  # of the steps that the directory holds: see RankFacts
        self._is_dying = is_dying  # the process of that number, by the kernel's word
        self.saving = Saving(())
        self.leaving = False  # to be stopped, as soon as the manager has had its say
        self.processes: dict[int, Process] = {}
        self.current: dict[int, int] = {}  # rank -> process
        self.orders: Orders | None = None
        self.term = 0
        self.seat = ""
        self.age: list[int] = []  # of the record
        self.record = b""
        self.lonely_s = 0.0  # for how long no manager in office has been heard of
        self.times = Times()
        self.version = 0
        self.stopping = False
        self._dropped = 0
        self.late_s = 0.0  # how late our own ticks come
        self.injections = list(settings.injections)
        self._next = 0
        self._stores = Stores(settings.member.id)
        self._log: dict[int, dict[int, bytes]] = {}  # rank -> index -> recorded collective
        self._fetched: set[tuple[int, int, int]] = set()  # (rank, generation, newest step)
        self._spares = Spares(settings.spares)
        self._partner = ""  # who keeps a copy of what our ranks know
        self._ready_for: list[int] = []  # as it was said last
        self.changed = True

    # ------------------------------------------------------------------------------------------ orders

    def on_orders(self, orders: Orders) -> list[Effect]:
        """Everything the manager wants, as of now."""
        last = self.orders
        if not self._may_follow(orders):
            self._dropped += 1
            return []
        if last is not None and orders.attempt != last.attempt:
            self._log.clear()
            self._spares.forget()
        self.term, self.seat, self.age = orders.term, orders.seat, orders.age
        self.orders = orders
        self.world_size = orders.world_size
        if orders.job:
            self.record = orders.job
        self.changed = True
        effects = self._move(orders.node) if orders.node != self.node else []
        partner = next((o.form.partner for o in orders.ranks if o.form is not None), "")
        if partner and (last is None or last.generation != orders.generation or partner != self._partner):
            self._partner = partner
            effects += [e for rank in self._log for e in self._forward_log(rank)]
        return [*effects, *self._stores.on_orders(orders), *self.reconcile(), *self.saving.on_orders(orders)]

    def _may_follow(self, orders: Orders) -> bool:
        """One manager in a term, and never back.

        Nobody is helped into office who does not know what we do: it may have been decided with our vote.
        """
        if orders.term != self.term or self.orders is None:
            return orders.term > self.term and (orders.granted or orders.base >= self.age)
        return orders.seat == self.seat and orders.version >= self.orders.version

    def _move(self, node: int) -> list[Effect]:
        """Take another place, or none: whoever was started for the old one has no part in the job any more."""
        effects: list[Effect] = []
        if self.node >= 0:
            effects.append(Say(f"node {self.node} is not ours any more; ending the ranks here"))
        before, self.node = self.node, node
        for p in self.processes.values():
            prepared = before < 0 and p.spare and p.rank in self.local_ranks
            if p.alive and not prepared:
                effects += self._kill(p)
        self.saving = Saving(self.local_ranks)
        self.current.clear()
        self._log = {r: log for r, log in self._log.items() if r in self.local_ranks}
        self._spares.forget()
        return effects

    @property
    def first_rank(self) -> int:
        return max(0, self.node) * self.settings.local_ranks

    @property
    def local_ranks(self) -> tuple[int, ...]:
        return tuple(range(self.first_rank, self.first_rank + self.settings.local_ranks)) if self.node >= 0 else ()

    @property
    def attached(self) -> bool:
        """Some rank here uses the library."""
        return any(self.processes[n].attached for n in self.current.values())

    def _forward_log(self, rank: int, only: int | None = None) -> list[Effect]:
        """Let another node keep what a replacement of `rank` would need to run the script up to its first step."""
        attempt = self.orders.attempt if self.orders is not None else 0
        entries = self._log.get(rank, {})
        indices = sorted(entries) if only is None else [only]
        keep = [KeepLog(attempt=attempt, rank=rank, index=i, data=entries[i]) for i in indices]
        return [SendPeer(self._partner, m) for m in keep] if self._partner else []

    def is_current(self, generation: int) -> bool:
        return self.orders is not None and self.orders.generation == generation

    def reconcile(self) -> list[Effect]:
        """What follows from the orders and what is there. Idempotent."""
        if self.orders is None:
            return []
        effects: list[Effect] = []
        for order in self.orders.ranks:
            effects += self._reconcile_rank(order, self.orders)
        effects += self._drop_old_spares(self.orders)
        effects += self._fetch(self.orders)
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
        if now.incarnation > order.incarnation:
            # Started for a manager that is no more, and this one knows nothing of it: the one it knows is dead.
            now.incarnation = order.incarnation
            self.changed = True
            return self._kill(now)
        if not now.attached or not now.alive:
            return []
        if order.want in ("pause", "save", "form", "run", "finish", "leave") and now.sent != order:
            now.sent = order
            return [SendRank(now.number, order)]
        return []

    def _fetch(self, orders: Orders) -> list[Effect]:
        """A stand-in that has become the rank gets the local state of the process before it."""
        effects: list[Effect] = []
        for rank, kept_at in orders.kept_at.items():
            p = self.processes.get(self.current.get(rank, -1))
            key = (rank, orders.generation, kept_at.step)
            if p is not None and p.parked and key not in self._fetched:
                self._fetched.add(key)
                effects.append(FetchLocal(p.number, kept_at.peer))
        return effects

    def _fill(self, order: RankOrder, orders: Orders) -> list[Effect]:
        """Give the rank a process: a parked spare where there is one, else a new one."""
        stand_in = order.want != "start"
        spares = [p for p in self.processes.values() if p.spare and p.alive and p.rank == order.rank]
        usable = [p for p in spares if stand_in and p.attempt == orders.attempt and self._is_well(p)]
        for p in usable:
            if p.parked:
                return [*self._promote(p, order, "spare"), *self._forward(p, order)]
        effects: list[Effect] = []
        for p in spares:
            if p in usable and p.attached:  # on its way: quicker than a new one
                return self._promote(p, order, "half-built spare")
            effects += self._kill(p)
        p = self._new(order.rank, order.incarnation, spare=False, stand_in=stand_in, attempt=orders.attempt)
        self.current[order.rank] = p.number
        kept = orders.kept_at.get(order.rank) if stand_in else None
        kept_at, log_at = kept.peer if kept else "", orders.log_at.get(order.rank, "") if stand_in else ""
        return [*effects, StartProcess(p.number, p.rank, p.incarnation, stand_in, p.attempt, kept_at, log_at)]

    def _is_well(self, p: Process) -> bool:
        """A large process takes a while to end, and until then reads as alive: one that was killed takes no place."""
        return not p.killed and not self._is_dying(p.pid)

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
        over = orders.phase in ("Finishing", "Succeeded", "Failed", "Stopped") or self.stopping
        for p in list(self.processes.values()):
            elsewhere = p.rank not in self.local_ranks and p.rank not in orders.ahead
            if p.spare and p.alive and (over or elsewhere or p.attempt != orders.attempt):
                effects += self._kill(p)
        return effects

    # ------------------------------------------------------------------------------------------ spares

    def want_spares(self, room: Callable[[], bool] = lambda: True) -> list[Effect]:
        """Start a spare where one is missing. One at a time: building it takes the ranks' cores.

        `room` says whether there is memory for one more process.
        """
        o = self.orders
        if o is None or self.stopping or o.phase != "Running":
            return []
        if self.node < 0:
            rank = self._spares.wanted_ahead(o.ahead, self.processes, room, self.settings.local_ranks)
        else:
            rank = self._spares.wanted(o.generation, self.processes, self.current, room)
        if rank is None:
            return []
        s = self._new(rank, 0, spare=True, stand_in=True, attempt=o.attempt)
        return [StartProcess(s.number, rank, 0, True, s.attempt, log_at=o.log_at.get(rank, ""))]

    def end_spares(self) -> list[Effect]:
        """What they take is needed by the ranks."""
        return [e for p in self.processes.values() if p.spare and p.alive for e in self._kill(p)]

    # ------------------------------------------------------------------------------------------ ranks

    def on_started(self, number: int, pid: int) -> None:
        if number in self.processes:
            self.processes[number].pid = pid
            self.changed = True

    def on_rank(self, number: int, message: object) -> list[Effect]:
        """A message from the process `number`."""
        p = self.processes.get(number)
        if p is None or not p.alive:
            self._dropped += 1
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
                        self._spares.parked(p.rank)
                self.changed = True
                return [*self._say_if_ready(), *(self._fetch(self.orders) if self.orders is not None else [])]
            case Recorded() if self.orders is None or p.attempt == self.orders.attempt:
                self._log.setdefault(p.rank, {})[message.index] = message.data
                return self._forward_log(p.rank, message.index)
            case StoreRequest():
                return self._ask_store(p, message)
            case Plan():
                return [*self.saving.on_plan(number, message)]
            case Copied() if not p.spare:
                return [*self.saving.on_copied(p.rank, message, self.orders)]
            case Injected():
                self.injections = [i for i in self.injections if i.id != message.id]
            case _:
                self._dropped += 1
        return []

    def _say_if_ready(self) -> list[Effect]:
        """One that stands by can take any of these places at once."""
        ahead = self.orders.ahead if self.orders is not None and self.node < 0 else []
        ready = {p.rank for p in self.processes.values() if p.spare and p.parked}
        if not ahead or not ready.issuperset(ahead) or ahead == self._ready_for:
            return []
        self._ready_for = list(ahead)
        nodes = sorted({r // self.settings.local_ranks for r in ahead})
        return [Say(f"ready to take the place of node {' or '.join(map(str, nodes))} at once")]

    def _welcome(self, p: Process) -> Welcome:
        page, local_dir = self._paths(p)
        log = self._log.get(p.rank, {}) if p.stand_in else {}
        step = self.processes[self.current[p.rank]].progress.step if p.rank in self.current else -1
        others = [q.progress.step for q in self.processes.values() if q.alive and not q.spare]
        return Welcome(
            rank=p.rank,
            local_rank=p.rank % self.settings.local_ranks,
            world_size=self.world_size,
            incarnation=p.incarnation,
            spare=p.stand_in,
            page=page,
            local_dir=local_dir,
            attempt=p.attempt,
            memory_dir=self.settings.memory_dir,
            dump_dir=self.settings.dump_dir,
            run=self.orders.run if self.orders is not None else "",
            step=max([step, *others, 0, self.orders.step if self.orders is not None else 0]),
            elastic=self.settings.elastic,
            injections=[i for i in self.injections if i.rank == p.rank and not p.spare],
            retry_on=list(self.settings.retry_on),
            address=self.settings.member.address,
            log=[log.get(i, b"") for i in range(max(log, default=-1) + 1)],
        )

    def kept(self, rank: int, attempt: int) -> Kept:
        """What another agent asks for: what is kept here of a rank elsewhere, or the log of one of ours.

        Where nobody has the log of its set-up, another rank's is the next best: most of what is exchanged there is told
        to all.
        """
        kept = self.keeper.of(rank, attempt)
        if self.orders is None or attempt != self.orders.attempt or kept.log:
            return kept
        log = self._log.get(rank if rank in self.local_ranks else self.first_rank, {})
        return msgspec.structs.replace(kept, log=[log.get(i, b"") for i in range(max(log, default=-1) + 1)])

    def take_over(self, rank: int, log: list[bytes]) -> None:
        """What another agent had kept for `rank`, which is ours now."""
        self._log[rank] = dict(enumerate(log))

    # ------------------------------------------------------------------------------------------ the store

    @property
    def dropped(self) -> int:
        """Messages refused because they were from the past."""
        return self._dropped + self._stores.refused

    @property
    def me(self) -> str:
        return self.settings.member.id

    def _ask_store(self, p: Process, q: StoreRequest) -> list[Effect]:
        if p.spare:
            self._dropped += 1
            return [SendRank(p.number, StoreReply(id=q.id, error="a spare has no part in any generation"))]
        store = self.orders.store if self.orders is not None else ""
        if store in ("", self.settings.member.peer):
            return self._stores.ask((self.me, p.number), q, self.orders)
        return [SendPeer(store, PeerStore(process=p.number, request=q))]

    def on_peer(self, agent: str, message: object) -> list[Effect]:
        """A request of another agent."""
        match message:
            case PeerStore():
                return self._stores.ask((agent, message.process), message.request, self.orders)
            case KeepLog():
                self.keeper.keep_log(message)
            case _:
                self._dropped += 1
        return []

    def on_peer_reply(self, message: PeerReply) -> list[Effect]:
        p = self.processes.get(message.process)
        return [SendRank(p.number, message.reply)] if p is not None and p.alive else []

    def on_exit(self, number: int, code: int, now: float) -> list[Effect]:
        p = self.processes.get(number)
        if p is None or not p.alive:
            return []
        p.exit_code, p.died_at = code, now
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

    def facts(self, now: float, told: bool = False) -> AgentFacts:
        """`told`: to a manager in office, which knows the record better than anybody."""
        self.version += 1
        self.changed = False
        ranks = [self._facts_of(self.processes[n], now) for _, n in sorted(self.current.items())]
        seen = self.orders.version if self.orders is not None else 0
        return AgentFacts(
            agent=self.settings.member,
            node=self.node,
            version=self.version,
            term=self.term,
            seat=self.seat,
            age=self.age,
            lonely_s=self.lonely_s,
            generation=self.orders.generation if self.orders is not None else 0,
            orders_version=seen,
            kept=self.keeper.steps(self.orders.attempt) if self.orders is not None else {},
            ranks=ranks,
            ahead=sorted({p.rank for p in self.processes.values() if p.spare and p.alive}) if self.node < 0 else [],
            record=b"" if told else self.record,
            stopping=self.stopping or self.leaving,
            now=now,
            parts=list(self.saving.parts),
            late_s=self.late_s,
            times=self.times,
            software="" if told else self.settings.software,
        )

    def _facts_of(self, p: Process, now: float) -> RankFacts:
        memory = self._memory_steps(p.rank)
        local = self._local_steps(p), self._early_steps(p)
        return rank_facts(p, self.node, self.saving, local, memory, self._begun(p), now)
