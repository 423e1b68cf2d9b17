"""What `agent/launcher.py` and `agent/peers.py` do around the production logic, over a simulated network."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onward.agent.effects import AnswerPeer, Effect, FetchLocal, KillProcess, Say, SendPeer, SendRank, StartProcess
from onward.agent.facts import Process
from onward.agent.logic import AgentLogic
from onward.agent.saving import DropPart, PublishCheckpoint, WriteCheckpoint
from onward.agent.settings import AgentSettings
from onward.core.checkpoints import SavedFile
from onward.core.facts import Progress
from onward.core.membership import Member
from onward.wire.messages import Orders, StoreReply, StoreRequest
from onward.wire.peers import KeepSlot, PeerReply, PeerStore

from .managers import Hosting
from .offices import SimOffice
from .ranks import RankProcess
from .transaction import first_local

if TYPE_CHECKING:
    from .world import World

TICK_S = 0.05
FACTS_S = 0.1
LONELY_S = 20.0  # without any manager in office: the deadline for what only a majority may decide
CONNECT_S = 0.6  # how long another agent is waited for


class SimMemory:
    """`onward/checkpoints/memory.py`: what outlives a process on its node. What is being filled holds nothing."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.shared: dict[int, int] = {}  # step -> value, two at most
        self.local: dict[tuple[int, int], tuple[int, int]] = {}  # (rank, step) -> (value, last step begun)

    def keep_shared(self, step: int, value: int) -> Generator[float, None, None]:
        while len(self.shared) > 1:
            del self.shared[min(self.shared)]
        self.shared.pop(step, None)
        yield self._world.lag(0.003)
        self.shared[step] = value

    def keep_local(self, rank: int, step: int, begun: int, value: int) -> Generator[float, None, None]:
        yield self._world.lag(0.001)
        self.local[(rank, step)] = (value, begun)

    def steps_of(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        local = tuple(sorted(s for r, s in self.local if r == rank))
        return tuple(s for s in local if s in self.shared), local


class SimAgent:
    """An agent's process: children, their exits, a tick, and the ways to the manager and to other agents."""

    def __init__(self, world: World, index: int, doors: Sequence[str] = ("door0|1",)) -> None:
        self.world, self.index = world, index
        s = world.scenario
        local, standby = s.world_size // s.nodes, index >= s.nodes
        self.member = Member(
            id=f"agent{index}",
            host=f"host{index}",
            peer=f"peer{index}|1",
            manager=f"door{index}|1",
            wanted=-1 if standby or s.any_place else index,
            standby=standby,
            nproc=local,
            pod=f"pod{index}" if s.pods else "",
        )
        settings = AgentSettings(member=self.member, local_ranks=local, spares=s.spares)
        self.memory = SimMemory(world)
        self.logic = AgentLogic(settings, lambda p: ("", ""), self._local_steps, self.memory.steps_of, self._begun)
        self.children: dict[int, RankProcess] = {}
        self.slots: dict[tuple[int, int], list[tuple[int, int]]] = {}  # (rank, attempt) -> two slots of (step, value)
        self.begun: dict[tuple[int, int], int] = {}  # (rank, attempt) -> last step begun
        self.office = SimOffice(self, doors)
        self.hosting = Hosting(self)
        self.alive, self.here, self.done = True, False, False
        self._sent_at = -1.0
        self._to_rank: dict[int, float] = {}  # when the last message to a process arrives
        self._asked: dict[int, set[tuple[int, int]]] = {}  # agent -> (process, request) that it has not answered

    def begin(self) -> None:
        self.here = True
        if self.index == 0:
            self.hosting.start_soon("kept", 0.0)
        self.world.after(self.world.lag(0.01), self.office.begin)
        self.world.after(TICK_S * self.world.rng.random(), self._tick)

    def __str__(self) -> str:
        return f"agent {self.index}"

    @property
    def node(self) -> int:
        """The place it believes to hold."""
        return self.logic.node

    @property
    def running(self) -> bool:
        """Its process is there."""
        return self.here and self.alive and not self.done

    @property
    def there(self) -> bool:
        """Its process is there, if only for the manager's farewell."""
        return self.running or (self.hosting.last is not None and self.hosting.last.alive)

    def die(self) -> None:
        """The node is gone: the agent, its ranks, a manager that it hosts, and all that was in its memory."""
        if not self.running:
            return
        self.world.note(f"{self} is gone")
        self.alive, self.world.somebody_left = False, True
        self.office.leave()
        self.hosting.close(farewell=False)
        for child in self.children.values():
            if child.alive:
                self.world.after(self.world.rng.random() * 0.003, child.die, -9)
        self._tell_peers()
        self.world.on_lost(self)

    def _tell_peers(self) -> None:
        for other in self.world.agents:
            if other is not self:
                self.world.after(self.world.lag(0.004), other.on_peer_lost, self.index)

    def _local_steps(self, p: Process) -> tuple[int, ...]:
        return tuple(sorted(step for step, _ in self.slots.get((p.rank, p.attempt), ()) if step >= 0))

    def _begun(self, p: Process) -> int:
        return self.begun.get((p.rank, p.attempt), -1)

    # ------------------------------------------------------------------------------------------ manager

    def on_manager(self, message: Any) -> None:
        if not self.running:
            return
        self.office.on_message(message)
        if isinstance(message, Orders):
            w = self.world
            before = self.logic.dropped
            effects = self.logic.on_orders(message)
            taken = self.logic.dropped == before
            if w.trace is not None:
                wants = ",".join(f"{o.rank}.{o.incarnation}:{o.want}" for o in message.ranks)
                what = "takes" if taken else "drops"
                w.note(
                    f"{self} {what} orders t{message.term} v{message.version} g{message.generation}"
                    f" {message.phase} node {message.node} {wants}"
                )
            if taken:
                w.promises.on_orders(self, message)
            self.apply(effects)
            self._check_end()

    def send_facts(self) -> None:
        connection = self.office.connection
        if connection is not None and connection.manager is not None:
            self._sent_at = self.world.now
            self.logic.lonely_s = self.office.lonely_s
            connection.send(True, self.logic.facts(self.world.now))

    # ------------------------------------------------------------------------------------------ ranks

    def apply(self, effects: list[Effect]) -> None:
        w = self.world
        for effect in effects:
            match effect:
                case StartProcess():
                    w.note(f"{self} starts {effect}")
                    w.promises.on_start(self, effect)
                    w.after(w.lag(0.02), self._fetch_and_start, effect)
                case FetchLocal():
                    w.after(w.lag(0.005), self._fetch_local, effect)
                case KillProcess():
                    self._kill(effect)
                case SendRank():
                    self.to_rank(effect.process, effect.message)
                case SendPeer():
                    self._send_peer(self._peer_at(effect.peer), effect.message)
                case AnswerPeer():
                    self._to_peer(w.by_id[effect.agent], effect.message)
                case Say():
                    w.note(f"{self}: {effect.text}")
                case WriteCheckpoint():
                    w.note(f"{self} writes {effect}")
                    w.after(w.lag(0.03), self._write, effect)
                case PublishCheckpoint():
                    w.after(w.lag(0.005), self._publish, effect)
                case DropPart():
                    w.unfinished.pop((effect.step, effect.generation, self.node), None)
        if self.logic.changed:
            self.send_facts()

    # ------------------------------------------------------------------------------------------ other agents

    def _send_peer(self, peer: SimAgent, message: Any) -> None:
        """On our connection to `peer`. When it breaks, or cannot be had, our ranks are answered with an error."""
        w = self.world
        asked = (message.process, message.request.id) if isinstance(message, PeerStore) else None
        if asked is not None:
            self._asked.setdefault(peer.index, set()).add(asked)
        if not peer.running:
            w.after(w.lag(0.004), self.on_peer_lost, peer.index)
        elif not w.network.reaches(self.index, peer.index, "peers"):
            w.after(CONNECT_S, self._not_connected, peer, message)
        else:
            self._to_peer(peer, message)

    def _not_connected(self, peer: SimAgent, message: Any) -> None:
        if self.world.network.reaches(self.index, peer.index, "peers"):
            self._to_peer(peer, message)
        else:
            self.on_peer_lost(peer.index)

    def _to_peer(self, peer: SimAgent, message: Any) -> None:
        self.world.after(self.world.lag(0.002), self._arrive, peer, message)

    def _arrive(self, peer: SimAgent, message: Any) -> None:
        at = self.world.network.opens_at(self.index, peer.index, "peers")
        if at > self.world.now:
            self.world.after(at - self.world.now, self._arrive, peer, message)
        elif peer.running:
            peer.on_peer(self, message)

    def on_peer(self, sender: SimAgent, message: Any) -> None:
        """Another agent asks, or answers."""
        if isinstance(message, PeerReply):
            asked = self._asked.get(sender.index, set())
            if (message.process, message.reply.id) in asked:
                asked.discard((message.process, message.reply.id))
                self.apply(self.logic.on_peer_reply(message))
            return
        effects = self.logic.on_peer(sender.member.id, message)
        if isinstance(message, PeerStore):
            self._check_store(message.request, effects)
        self.apply(effects)

    def on_peer_lost(self, index: int) -> None:
        """The connection to that agent broke: what was asked on it is answered with an error."""
        if not self.running:
            return
        for process, request in sorted(self._asked.pop(index, ())):
            error = f"the agent that keeps the store ({index}) cannot be reached"
            self.apply(self.logic.on_peer_reply(PeerReply(process=process, reply=StoreReply(id=request, error=error))))

    def keep_for(self, message: KeepSlot) -> bool:
        """A rank of another node asks us to keep its local state."""
        return self.logic.keeper.keep_slot(message)

    def _fetch_and_start(self, effect: StartProcess) -> None:
        """Whoever takes over a place asks first for what was kept of its ranks elsewhere."""
        w = self.world
        if effect.log_at and not effect.kept_at:
            w.after(w.lag(0.005), self._learn_and_start, self._peer_at(effect.log_at), effect)
            return
        if not effect.kept_at:
            self._start(effect)
            return
        peer = self._peer_at(effect.kept_at)
        if not w.network.reaches(self.index, peer.index, "peers"):
            w.after(CONNECT_S, self._start, effect)
        else:
            w.after(w.lag(0.005), self._fetched, peer, effect)

    def _learn_and_start(self, peer: SimAgent, effect: StartProcess) -> None:
        if peer.running and self.world.network.reaches(self.index, peer.index, "peers"):
            self.logic.take_over(effect.rank, peer.logic.kept(effect.rank, effect.attempt).log)
            self._start(effect)
        else:
            self.apply(self.logic.on_exit(effect.process, -1, self.world.now))

    def _fetched(self, peer: SimAgent, effect: StartProcess) -> None:
        self._take_over(peer, effect.rank, effect.attempt)
        self._start(effect)

    def _fetch_local(self, effect: FetchLocal) -> None:
        """The same for a process that is there already."""
        p, peer = self.logic.processes.get(effect.process), self._peer_at(effect.kept_at)
        if p is not None and p.alive and self.world.network.reaches(self.index, peer.index, "peers"):
            self._take_over(peer, p.rank, p.attempt)
            self.logic.changed = True
            self.apply([])

    def _take_over(self, peer: SimAgent, rank: int, attempt: int) -> None:
        if not peer.running:
            return
        kept = peer.logic.keeper.of(rank, attempt)
        slots = self.slots.setdefault((rank, attempt), [(-1, 0), (-1, 0)])
        for i, data in kept.slots.items():
            step, value = data.decode().split()
            slots[i] = (int(step), int(value))
        self.logic.take_over(rank, kept.log)
        self.world.note(f"{self} takes over rank {rank} with steps {sorted(slots)} from {peer}")

    def _peer_at(self, address: str) -> SimAgent:
        return next(a for a in self.world.agents if a.member.peer == address)

    # ------------------------------------------------------------------------------------------ checkpoints

    def _write(self, effect: WriteCheckpoint) -> None:
        """What `saver.py` and `vault.py` do, with numbers for files."""
        if not self.running:
            return
        w, error, files = self.world, "", []
        if effect.save is not None:
            error = self._keep_slots(effect)
            effect = replace(effect, shared=effect.shared or effect.step in self.memory.shared)
        part: dict[str, Any] = {}
        if effect.disk and not error:
            if w.scenario.disk_full:
                error = "No space left on device"
            elif effect.shared and effect.step not in self.memory.shared:
                error = "overwritten"
            else:
                part = {f"local{r}": self.memory.local[(r, effect.step)] for r in effect.ranks}
                part |= {"shared": self.memory.shared[effect.step]} if effect.shared else {}
                w.unfinished[(effect.step, effect.generation, self.node)] = part
                files = [SavedFile(name, 8, f"{self.node}") for name in part]
        self.logic.changed = True
        self.apply(self.logic.saving.on_written(effect, tuple(files), error))

    def _keep_slots(self, effect: WriteCheckpoint) -> str:
        assert effect.save is not None
        for rank in effect.ranks:
            slots, begun = self._slots_of(rank, effect.step)
            step, value = slots[effect.step % 2]
            if step != effect.step:
                return f"the local state of rank {rank} is not that of step {effect.step}"
            begun = effect.step - 1 if effect.save.again else begun
            self.memory.local[(rank, effect.step)] = (value, begun)
        return ""

    def _slots_of(self, rank: int, step: int) -> tuple[list[tuple[int, int]], int]:
        """The local state of a rank, and the last step it had begun; of a lost node what we keep for it."""
        slots = [(-1, 0), (-1, 0)]
        number = self.logic.current.get(rank)
        if number is None:
            attempt = self.logic.orders.attempt if self.logic.orders is not None else 0
            for i, data in self.logic.keeper.of(rank, attempt).slots.items():
                kept, value = data.decode().split()
                slots[i] = (int(kept), int(value))
            return slots, step - 1
        key = (rank, self.logic.processes[number].attempt)
        return self.slots.get(key, slots), self.begun.get(key, -1)

    def _publish(self, effect: PublishCheckpoint) -> None:
        if not self.running:
            return
        w, grant = self.world, effect.grant
        if not self.logic.is_current(grant.generation):
            self.apply(self.logic.saving.on_published(grant, "the generation is over"))
            return
        whole: dict[str, Any] = {}
        for node in range(w.scenario.nodes):
            whole |= w.unfinished.pop((grant.step, grant.generation, node), {})
        if {f.name for f in grant.files} - set(whole):
            self.apply(self.logic.saving.on_published(grant, "a file is missing"))
            return
        w.promises.on_publish_checkpoint(self, grant, whole)
        w.disk[grant.step] = whole
        self.logic.changed = True
        self.apply(self.logic.saving.on_published(grant, ""))

    def loadable(self, rank: int) -> tuple[int, ...]:
        return tuple(sorted({*self.memory.steps_of(rank)[0], *self.world.disk}))

    def saved_shared(self, step: int) -> int:
        value: int = self.memory.shared[step] if step in self.memory.shared else self.world.disk[step]["shared"]
        return value

    def saved_local(self, rank: int, step: int) -> tuple[int, int]:
        kept = self.memory.local.get((rank, step))
        if kept is None and f"local{rank}" not in self.world.disk[step]:
            others = [part for name, part in sorted(self.world.disk[step].items()) if name.startswith("local")]
            return first_local(rank), others[0][1]  # it was absent when this was saved, and does as they do
        found: tuple[int, int] = kept if kept is not None else self.world.disk[step][f"local{rank}"]
        return found

    def _start(self, effect: StartProcess) -> None:
        p = self.logic.processes.get(effect.process)
        if p is None or not self.running:
            return
        child = RankProcess(self.world, self, p)
        if self.world.at_point(child, "start", -1) is not None:
            self.apply(self.logic.on_exit(p.number, 71, self.world.now))
            return
        self.children[p.number] = child
        self.logic.on_started(p.number, 1000 + p.number)
        child.begin()
        if p.killed:
            child.die(-9)
        self.apply([])

    def _kill(self, effect: KillProcess) -> None:
        child = self.children.get(effect.process)
        if child is None:
            return
        if effect.gently:
            self.world.after(self.world.lag(0.02), child.die, -15)
        else:
            child.die(-9)

    def to_rank(self, number: int, message: Any) -> None:
        child = self.children.get(number)
        if child is not None:
            at = max(self.world.now + self.world.lag(0.001), self._to_rank.get(number, 0.0))
            self._to_rank[number] = at
            self.world.after(at - self.world.now, child.receive, message)

    def from_rank(self, child: RankProcess, message: Any) -> None:
        if not self.running:
            return
        effects = self.logic.on_rank(child.number, message)
        if isinstance(message, StoreRequest):
            self._check_store(message, effects)
        self.apply(effects)

    def _check_store(self, q: StoreRequest, effects: list[Effect]) -> None:
        replies = [e.message for e in effects if isinstance(e, SendRank)]
        replies += [e.message.reply for e in effects if isinstance(e, AnswerPeer) and isinstance(e.message, PeerReply)]
        self.world.promises.on_store(self, q, any(isinstance(r, StoreReply) and not r.error for r in replies))

    def on_exit(self, child: RankProcess, code: int) -> None:
        if not self.running:
            return
        p = self.logic.processes.get(child.number)
        if p is not None:
            self._read_page(p, child)
        self.apply(self.logic.on_exit(child.number, code, self.world.now))
        self._check_end()

    # ------------------------------------------------------------------------------------------ watching

    def _tick(self) -> None:
        w = self.world
        if not self.running:
            return
        self.office.look()
        if self.office.lonely_s > LONELY_S:
            self.world.promises.on_given_up(self)
            self._end("gives up: nobody is in office")
            return
        for number, p in list(self.logic.processes.items()):
            child = self.children.get(number)
            if child is not None and p.alive:
                self._read_page(p, child)
        self.apply(self.logic.want_spares())
        if self.logic.changed or w.now - self._sent_at >= FACTS_S - 1e-9:
            self.send_facts()
        w.after(TICK_S, self._tick)

    def _read_page(self, p: Process, child: RankProcess) -> None:
        now, page = self.world.now, child.page
        p.progress = Progress(
            step=page.step,
            launched=page.launched,
            pending_s=now - page.launched_at if page.launched_at else 0.0,
            beat_s=now - page.beat_at if child.stopped else 0.05,
            idle_s=now - page.progress_at,
            section=page.section > 0,
            step_s=page.step_s,
            gate=page.gate,
            inside=page.inside,
        )

    def _check_end(self) -> None:
        orders = self.logic.orders
        if orders is None or orders.exit_code is None or self.done:
            return
        if any(p.alive and not p.spare for p in self.logic.processes.values()):
            return
        self.world.promises.on_done(self, orders)
        self._end(f"is done: {orders.phase} {orders.reason}")

    def _end(self, how: str) -> None:
        self.done = self.world.somebody_left = True
        self.world.note(f"{self} {how}")
        self.office.leave()
        self.hosting.close(farewell=True)
        self._tell_peers()
        for child in self.children.values():
            child.die(-9)
