"""What ranks share outside the control plane: collectives and state transfers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .fence import Membership
    from .following import Stream
    from .ranks import RankProcess
    from .world import World

MASK = (1 << 61) - 1
ABORT_GRACE_S = 0.02


def mix(a: int, b: int) -> int:
    """Order matters, nothing cancels: a chain of these is a history."""
    return (a * 6364136223846793005 + b * 1442695040888963407 + 1013904223) & MASK


@dataclass
class Op:
    """One rank's part in one collective."""

    process: RankProcess
    membership: Membership
    step: int
    base: int  # its shared state when it entered
    value: int
    done: bool = False
    failed: bool = False
    complete: bool = False  # everybody has entered
    result: int = 0


@dataclass
class Request:
    """A receiver's wish for the state that a source serves."""

    receiver: RankProcess
    generation: int
    started: bool = False
    done: bool = False
    failed: bool = False
    value: int = 0
    learnt: int = 0


@dataclass
class Meeting:
    ops: dict[int, Op] = field(default_factory=dict)


class Fabric:
    """A collective ends on a rank only when all ranks of its generation have entered it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._meetings: dict[tuple[object, ...], Meeting] = {}
        self._cut: set[tuple[object, ...]] = set()  # memberships with a broken connection
        self.streams: list[Stream] = []  # between who follows and who is followed

    # ------------------------------------------------------------------------------------------ collectives

    def enter(self, process: RankProcess, value: int) -> Op:
        m = process.membership
        m.sequence += 1
        op = Op(process, m, process.tx.step, process.tx.shared, value)
        m.pending = op
        meeting = self._meetings.setdefault((*m.key, m.sequence), Meeting())
        meeting.ops[process.rank] = op
        w = self.world
        if m.failed:
            self.finish(op, False)  # aborted while it was being launched
        elif m.key in self._cut or (w.scenario.resets and any(not p.alive for p in m.peers)):
            w.after(w.lag(0.01), self.finish, op, False)
        elif len(meeting.ops) == len(process.members):
            self._complete(meeting)
        return op

    def _complete(self, meeting: Meeting) -> None:
        w = self.world
        ops = meeting.ops.values()
        healed = self._healed_at(meeting)
        if healed > w.now:
            w.after(healed - w.now, self._complete, meeting)  # what was sent arrives then
            return
        if any(op.done or not op.process.alive for op in ops):
            return  # somebody gave up meanwhile
        w.promises.on_collective(list(ops))
        total = 0
        for rank in sorted(meeting.ops):
            value = meeting.ops[rank].value
            total = (total + value) & MASK if self.world.scenario.elastic else mix(total, value)
        for op in ops:
            op.complete, op.result = True, total
            w.after(w.lag(w.scenario.result_s), self.finish, op, True)

    def _healed_at(self, meeting: Meeting) -> float:
        """When all of them can talk to each other."""
        at = self.world.now
        if self.world.network.any:
            homes = sorted({op.process.agent.index for op in meeting.ops.values()})
            for one in homes:
                at = max([at, *(self.world.network.opens_at(one, other, "ranks") for other in homes)])
        return at

    def finish(self, op: Op, ok: bool) -> None:
        if op.done or not op.process.alive:
            return
        op.done, op.failed = True, not ok
        if not ok:
            op.membership.failed = op.membership.broken = True
        op.process.poke()

    def abort(self, m: Membership) -> None:
        """Wake whoever waits in this membership; an operation may still end well in the grace period."""
        m.failed = True
        if m.pending is not None and not m.pending.done:
            self.world.after(self.world.rng.random() * ABORT_GRACE_S, self.finish, m.pending, False)

    def lose(self, process: RankProcess, in_order: bool) -> None:
        """A process is gone: its peers' connections may say so. What it had sent in order still arrives."""
        if self.world.scenario.resets:
            self._break(process.membership, in_order)
        for request in process.requests:
            if not request.done:
                self.world.after(self.world.lag(0.01), self._fail, request)

    def cut(self, process: RankProcess) -> None:
        """This rank's connections are shut; nobody died."""
        self._cut.add(process.membership.key)
        self._break(process.membership, False)

    def cut_links(self, side: frozenset[int]) -> None:
        """The connections between these nodes and all others are reset."""
        for stream in self.streams:
            if (stream.source.agent.index in side) != (stream.follower.agent.index in side):
                stream.cut()
        for agent in self.world.agents:
            for process in agent.children.values():
                m = process.membership
                if process.alive and m.peers and len({p.agent.index in side for p in m.peers}) > 1:
                    self._cut.add(m.key)
                    self._break(m, False)

    def _break(self, m: Membership, in_order: bool) -> None:
        w = self.world
        for peer in m.peers:
            op = peer.membership.pending
            if op is not None and not op.done and peer.membership.key == m.key and not (in_order and op.complete):
                w.after(w.lag(0.01), self.finish, op, False)

    # ------------------------------------------------------------------------------------------ state transfer

    def ask_state(self, receiver: RankProcess, source: str, generation: int) -> Request:
        request = Request(receiver, generation)
        giver = next((p for a in self.world.agents for p in a.children.values() if p.serve == source), None)
        here = receiver.agent.index
        if giver is None or not giver.alive or not self.world.network.reaches(here, giver.agent.index, "ranks"):
            self.world.after(self.world.lag(0.005), self._fail, request)
        else:
            giver.requests.append(request)
            giver.poke()
        return request

    def _fail(self, request: Request) -> None:
        if not request.done:
            request.failed = True
            request.receiver.poke()

    def serve(self, source: RankProcess, request: Request) -> None:
        request.started = True
        if request.generation != source.membership.generation or not request.receiver.alive:
            self._fail(request)
            return
        before = source.tx.shared
        took = min(self.world.lag(self.world.scenario.transfer_s), 1.5)  # below what a group may take to form
        self.world.after(took, self._served, source, request, before)

    def _served(self, source: RankProcess, request: Request, before: int) -> None:
        if request.failed or not request.receiver.alive:
            return
        here, there = source.agent.index, request.receiver.agent.index
        if not source.alive or source.stopped or not self.world.network.reaches(here, there, "ranks"):
            self._fail(request)
            return
        self.world.promises.on_transfer(source, request, before)
        request.value, request.learnt = source.tx.shared, source.tx.learnt
        request.done = True
        request.receiver.poke()
        source.poke()
