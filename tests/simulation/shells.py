"""What `agent/launcher.py` and `manager/server.py` do around the production logic, over a simulated network."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onward.agent.logic import (
    AgentLogic,
    AgentSettings,
    AnswerPeer,
    Effect,
    KillProcess,
    Process,
    Say,
    SendPeer,
    SendRank,
    StartProcess,
)
from onward.agent.saving import DropPart, PublishCheckpoint, WriteCheckpoint
from onward.core.checkpoints import SavedFile
from onward.core.facts import Progress
from onward.core.membership import Member
from onward.manager.logic import ManagerLogic
from onward.wire.messages import AgentFacts, Note, Orders, PeerReply, PeerStore, StoreReply, StoreRequest

from .ranks import RankProcess

if TYPE_CHECKING:
    from .world import World

TICK_S = 0.05
FACTS_S = 0.1
RECONNECT_S = 0.02


class Connection:
    """One connection of an agent to a manager. In order and reliable, unless the scenario is hostile."""

    def __init__(self, world: World, agent: SimAgent, manager: SimManager) -> None:
        self.world, self.agent, self.manager = world, agent, manager
        self.open = True
        self.silent = False
        self.greeted = False
        self._free_at = [0.0, 0.0]  # when the last message of each direction arrives

    def send(self, to_manager: bool, message: Any) -> None:
        w, s = self.world, self.world.scenario
        if self.silent or (s.loss and w.rng.random() < s.loss):
            w.note(f"lost: {_name(message)} {'from' if to_manager else 'to'} node {self.agent.node}")
            return
        for _ in range(2 if s.duplicates and w.rng.random() < s.duplicates else 1):
            at = w.now + w.lag(0.04 if s.slow_network else 0.004)
            if not s.reorder:
                at = self._free_at[to_manager] = max(at, self._free_at[to_manager])
            w.after(at - w.now, self._deliver, to_manager, message)

    def _deliver(self, to_manager: bool, message: Any) -> None:
        if to_manager:
            if self.manager.alive:
                self.manager.on_message(self, message)
        elif self.agent.connection is self or self._is_past(message):
            self.agent.on_manager(message)

    def _is_past(self, message: Any) -> bool:
        """An agent reads one connection at a time. What comes late, from a manager before this one, must be refused."""
        seen = self.agent.logic.orders
        if seen is None or not isinstance(message, Orders):
            return False
        return (message.term, message.version) < (seen.term, seen.version)

    def close(self) -> None:
        self.open = False


class SimManager:
    """A manager's process. Its clock is its own: it may run on another machine than the last one."""

    def __init__(self, world: World, record: bytes) -> None:
        self.world = world
        self.logic = ManagerLogic(world.settings, record)
        self.alive = True
        self.offset = world.rng.choice((0.0, 0.0, -5000.0, 5000.0))
        self._peers: dict[str, Connection] = {}
        world.after(TICK_S, self._tick)

    @property
    def clock(self) -> float:
        return 10_000.0 + self.offset + self.world.now

    def _tick(self) -> None:
        if self.alive:
            self.logic.think(self.clock)
            self._flush()
            self.world.after(TICK_S, self._tick)

    def on_message(self, connection: Connection, message: AgentFacts) -> None:
        if not connection.greeted:
            if not connection.open:
                return  # hung up before it was read: a server that reads it late finds the end of the connection next
            connection.greeted = True
            self.logic.forget(message.agent.id)
            self._peers[message.agent.id] = connection
        self.logic.on_facts(message, self.clock)
        self._flush()

    def _flush(self) -> None:
        w, logic = self.world, self.logic
        if logic.changed_job:
            logic.changed_job = False
            assert logic.job is not None
            if w.manager is self:
                w.journal.append(logic.record())
                w.promises.on_job(logic.job)
                w.job_changed(logic.job.phase.value)
        out, logic.out = logic.out, []
        for agent, message in out:
            if w.trace is not None and isinstance(message, Note):
                w.note(f"manager: {message.text}")
            if not isinstance(message, Orders):
                continue
            for name, connection in self._peers.items():
                if (agent is None or name == agent) and connection.open:
                    connection.send(False, message)

    def die(self) -> None:
        self.alive = False
        self._hang_up()

    def retire(self) -> None:
        """Replaced while it still lives and thinks: what it had sent may arrive late."""
        self.world.old_managers.append(self)
        self._hang_up()
        self.world.after(1.0, self.die)

    def _hang_up(self) -> None:
        for agent in self.world.agents:
            if agent.connection is not None and agent.connection.manager is self:
                agent.hang_up()


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
    """An agent's process: children, their exits, a tick, and the way to the manager."""

    def __init__(self, world: World, node: int) -> None:
        self.world, self.node = world, node
        s = world.scenario
        local = s.world_size // s.nodes
        self.member = Member(id=f"agent{node}", peer=f"node{node}|1", wanted=node, nproc=local)
        settings = AgentSettings(member=self.member, local_ranks=local, spares=s.spares)
        self.memory = SimMemory(world)
        self.logic = AgentLogic(settings, lambda p: ("", ""), self._local_steps, self.memory.steps_of, self._begun)
        self.children: dict[int, RankProcess] = {}
        self.slots: dict[tuple[int, int], list[tuple[int, int]]] = {}  # (rank, attempt) -> two slots of (step, value)
        self.begun: dict[tuple[int, int], int] = {}  # (rank, attempt) -> last step begun
        self.connection: Connection | None = None
        self.done = False
        self._cut_until = 0.0
        self._sent_at = -1.0
        self._to_rank: dict[int, float] = {}  # when the last message to a process arrives

    def begin(self) -> None:
        self.world.after(self.world.lag(0.01), self._connect)
        self.world.after(TICK_S * self.world.rng.random(), self._tick)

    def _local_steps(self, p: Process) -> tuple[int, ...]:
        return tuple(sorted(step for step, _ in self.slots.get((p.rank, p.attempt), ()) if step >= 0))

    def _begun(self, p: Process) -> int:
        return self.begun.get((p.rank, p.attempt), -1)

    # ------------------------------------------------------------------------------------------ manager

    def _connect(self) -> None:
        w = self.world
        if self.connection is not None:
            return
        if w.manager is None or w.now < self._cut_until:
            w.after(RECONNECT_S, self._connect)
            return
        self.connection = Connection(w, self, w.manager)
        self._send_facts()

    def hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None
            self.world.after(RECONNECT_S, self._connect)

    def cut_off(self, for_s: float, silent: bool) -> None:
        """No way to the manager for a while. Silent: the connection looks alive until it is given up."""
        self._cut_until = self.world.now + for_s
        if not silent:
            self.hang_up()
        elif self.connection is not None:
            self.connection.silent = True
            self.world.after(for_s, self._give_up, self.connection)

    def _give_up(self, connection: Connection) -> None:
        if self.connection is connection:
            self.hang_up()

    def on_manager(self, message: Any) -> None:
        if isinstance(message, Orders) and not self.done:
            w = self.world
            before = self.logic.dropped
            effects = self.logic.on_orders(message)
            taken = self.logic.dropped == before
            if w.trace is not None:
                wants = ",".join(f"{o.rank}.{o.incarnation}:{o.want}" for o in message.ranks)
                what = "takes" if taken else "drops"
                w.note(
                    f"node {self.node} {what} orders t{message.term} v{message.version} g{message.generation} {wants}"
                )
            if taken:
                w.promises.on_orders(self, message)
            self.apply(effects)
            self._check_end()

    def _send_facts(self) -> None:
        if self.connection is not None:
            self._sent_at = self.world.now
            self.connection.send(True, self.logic.facts(self.world.now))

    # ------------------------------------------------------------------------------------------ ranks

    def apply(self, effects: list[Effect]) -> None:
        w = self.world
        for effect in effects:
            match effect:
                case StartProcess():
                    w.note(f"node {self.node} starts {effect}")
                    w.promises.on_start(effect)
                    w.after(w.lag(0.02), self._start, effect)
                case KillProcess():
                    self._kill(effect)
                case SendRank():
                    self.to_rank(effect.process, effect.message)
                case SendPeer():
                    peer = next(a for a in w.agents if a.member.peer == effect.peer)
                    w.after(w.lag(0.002), peer.on_peer, self.member.id, effect.message)
                case AnswerPeer():
                    peer = next(a for a in w.agents if a.member.id == effect.agent)
                    w.after(w.lag(0.002), peer.on_peer, self.member.id, effect.message)
                case Say():
                    w.note(f"node {self.node}: {effect.text}")
                case WriteCheckpoint():
                    w.note(f"node {self.node} writes {effect}")
                    w.after(w.lag(0.03), self._write, effect)
                case PublishCheckpoint():
                    w.after(w.lag(0.005), self._publish, effect)
                case DropPart():
                    w.unfinished.pop((effect.step, effect.generation, self.node), None)
        if self.logic.changed:
            self._send_facts()

    # ------------------------------------------------------------------------------------------ checkpoints

    def _write(self, effect: WriteCheckpoint) -> None:
        """What `saver.py` and `vault.py` do, with numbers for files."""
        if self.done:
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
            key = (rank, self.logic.processes[self.logic.current[rank]].attempt)
            step, value = self.slots.get(key, [(-1, 0), (-1, 0)])[effect.step % 2]
            if step != effect.step:
                return f"the local state of rank {rank} is not that of step {effect.step}"
            begun = effect.step - 1 if effect.save.again else self.begun.get(key, -1)
            self.memory.local[(rank, effect.step)] = (value, begun)
        return ""

    def _publish(self, effect: PublishCheckpoint) -> None:
        if self.done:
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
        found: tuple[int, int] = kept if kept is not None else self.world.disk[step][f"local{rank}"]
        return found

    def _start(self, effect: StartProcess) -> None:
        p = self.logic.processes.get(effect.process)
        if p is None or self.done:
            return
        child = RankProcess(self.world, self, p)
        if self.world.at_point(child, "start", -1) is not None:
            self.apply(self.logic.on_exit(p.number, 71))
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
        if self.done:
            return
        effects = self.logic.on_rank(child.number, message)
        if isinstance(message, StoreRequest):
            self._check_store(message, effects)
        self.apply(effects)

    def on_peer(self, agent: str, message: Any) -> None:
        """Another agent asks, or answers."""
        if self.done:
            return
        if isinstance(message, PeerReply):
            self.apply(self.logic.on_peer_reply(message))
            return
        effects = self.logic.on_peer(agent, message)
        if isinstance(message, PeerStore):
            self._check_store(message.request, effects)
        self.apply(effects)

    def _check_store(self, q: StoreRequest, effects: list[Effect]) -> None:
        replies = [e.message for e in effects if isinstance(e, SendRank)]
        replies += [e.message.reply for e in effects if isinstance(e, AnswerPeer) and isinstance(e.message, PeerReply)]
        self.world.promises.on_store(self, q, any(isinstance(r, StoreReply) and not r.error for r in replies))

    def on_exit(self, child: RankProcess, code: int) -> None:
        if self.done:
            return
        p = self.logic.processes.get(child.number)
        if p is not None:
            self._read_page(p, child)
        self.apply(self.logic.on_exit(child.number, code))
        self._check_end()

    # ------------------------------------------------------------------------------------------ watching

    def _tick(self) -> None:
        w = self.world
        for number, p in list(self.logic.processes.items()):
            child = self.children.get(number)
            if child is not None and p.alive:
                self._read_page(p, child)
        self.apply(self.logic.want_spares())
        if self.logic.changed or w.now - self._sent_at >= FACTS_S - 1e-9:
            self._send_facts()
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
        )

    def _check_end(self) -> None:
        orders = self.logic.orders
        if orders is None or orders.exit_code is None or self.done:
            return
        if any(p.alive and not p.spare for p in self.logic.processes.values()):
            return
        self.done = True
        self.world.agents_done += 1
        self.world.note(f"node {self.node} is done: {orders.phase} {orders.reason}")
        for child in self.children.values():
            child.die(-9)


def _name(message: Any) -> str:
    return type(message).__name__
