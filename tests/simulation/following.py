"""A stand-in that follows a rank, as in `onward/train` (feed, telling, shadow, follow), with numbers for tensors.

The one that is followed tells what it does; what it told arrives in order, when the network lets it. The one that
follows works on values of its own: they become its state only when it stands where the other stands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onward.wire.messages import RankOrder

from .fabric import mix

if TYPE_CHECKING:
    from .ranks import RankProcess

Thread = Generator[Any, None, Any]
MOST = 60  # things told that wait; who is further behind is given up
CLOSE = 1


@dataclass(frozen=True)
class State:
    step: int
    shared: int
    local: int
    learnt: int


@dataclass(frozen=True)
class Result:
    value: int


@dataclass(frozen=True)
class Begun:
    step: int
    local: int


@dataclass(frozen=True)
class Committed:
    step: int
    newest: list[int]  # of the feed: read when it arrives


@dataclass(frozen=True)
class Ended:
    """Without a step: the other has nothing to hand over."""

    step: int = -1
    generation: int = 0
    past: bool = False
    shared: int = 0
    local: tuple[tuple[int, int], ...] = ()  # slots of `step`, and of the next one if that is safe already
    light: int = 0
    between: tuple[int, ...] = ()


Item = State | Result | Begun | Committed | Ended


class Astray(Exception):
    """This process follows no more."""


class Stream:
    """The connection between the two. Whatever was sent arrives before its end does."""

    def __init__(self, source: RankProcess, follower: RankProcess) -> None:
        self.source, self.follower = source, follower
        self.items: deque[Item] = deque()
        self.open = True
        self._free_at = 0.0
        self._under_way = 0

    @property
    def waiting(self) -> int:
        return self._under_way + len(self.items)

    def put(self, item: Item | None) -> None:
        """None: the end."""
        w = self.source.world
        self._under_way += 1
        self._free_at = max(w.now + w.lag(0.004), self._free_at)
        w.after(self._free_at - w.now, self._arrive, item)

    def _arrive(self, item: Item | None) -> None:
        w = self.source.world
        at = w.network.opens_at(self.source.agent.index, self.follower.agent.index, "ranks")
        if at > w.now:
            w.after(at - w.now, self._arrive, item)
            return
        self._under_way -= 1
        if self.open and item is not None:
            self.items.append(item)
        else:
            self.open = False
        self.follower.poke()

    def cut(self) -> None:
        self.open = False
        self.follower.poke()


class Feed:
    """What a rank tells whoever follows it. Training never waits for that."""

    def __init__(self, process: RankProcess) -> None:
        self._p = process
        self._wanted: Stream | None = None
        self.stream: Stream | None = None
        self._newest = [-1]

    def ask(self, follower: RankProcess) -> Stream:
        self._wanted = Stream(self._p, follower)
        return self._wanted

    def begin_if_wanted(self) -> None:
        tx, wanted = self._p.tx, self._wanted
        kept, local = tx.slots[tx.step % 2]
        if wanted is None or tx.step < 1 or kept != tx.step:
            return
        self.drop()
        self._wanted, self.stream, self._newest = None, wanted, [tx.step - 1]
        wanted.put(State(tx.step, tx.shared, local, tx.learnt))

    def tell(self, item: Item) -> None:
        if self.stream is None:
            return
        if not self.stream.open or not self.stream.follower.alive or self.stream.waiting > MOST:
            self.drop()
        else:
            self.stream.put(item)

    def result(self, value: int) -> None:
        self.tell(Result(value))

    def begun(self, step: int) -> None:
        self.tell(Begun(step, self._p.tx.local))

    def committed(self, step: int) -> None:
        self._newest[0] = step
        self.tell(Committed(step, self._newest))

    def end_at_fence(self, generation: int, between: list[int]) -> None:
        tx = self._p.tx
        step, clean, _ = tx.standing()
        kept = tx.slots[step % 2][0]
        if not clean or kept != step or not self._p.holds:
            self.end(Ended())
        else:
            slots = tuple(slot for slot in tx.slots if slot[0] >= step)
            self.end(Ended(step, generation, tx.begun >= step, tx.shared, slots, tx.shape, tuple(between)))

    def end(self, item: Ended) -> None:
        self.tell(item)
        self.stream = None

    def drop(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.put(None)

    def die(self) -> None:
        """The kernel closes what the process had open."""
        for stream in (self._wanted, self.stream):
            if stream is not None:
                stream.put(None)


class Following:
    """Of a process that is parked."""

    def __init__(self, process: RankProcess) -> None:
        self._p = process
        self._tried = ""
        self.claimed = 0  # the generation for which it holds what the other held
        self.follows = ""
        self._step = self._shared = self._local = 0
        self._ended: Ended | None = None
        self._source: RankProcess | None = None

    def concerns(self, order: RankOrder) -> bool:
        return (bool(order.follow) and order.follow != self._tried) or self._outlived(order)

    def _outlived(self, order: RankOrder) -> bool:
        return bool(self.claimed) and order.generation > self.claimed

    def follow(self, order: RankOrder) -> Thread:
        """Until the other stands at the fence, or this process has lost its way."""
        p, generation = self._p, 0
        try:
            if self._outlived(order):
                self.claimed = 0
                p.tx.slots[:] = [(-1, 0), (-1, 0)]
                raise Astray("the swap did not take place")
            self._tried, self._ended = order.follow, None
            yield from self._run(order.follow)
            generation = self._arrive()
        except Astray as e:
            p.world.note(f"{p} does not follow: {e}")
        self.follows = "yes" if generation else "no"
        self.claimed = generation
        p.holds = bool(generation)
        p.report_parked(generation)
        p.at("followed")

    def _run(self, source: str) -> Thread:
        p = self._p
        stream = self._connect(source)
        p.at("follow")
        state = yield from self._next(stream)
        if not isinstance(state, State):
            raise Astray("it did not begin with its state")
        self._step, self._shared, self._local = state.step, state.shared, state.local
        p.tx.learn_from(state.learnt)
        while self._ended is None:
            item = yield from self._next(stream)
            if isinstance(item, Result):
                continue  # of a collective between steps: the code after the block asks whether the step counts
            if isinstance(item, Ended):
                self._ended = item
            elif isinstance(item, Begun) and item.step == self._step and item.local == self._local:
                yield from self._block(stream)
            else:
                raise Astray(f"it did not go on at step {self._step}: {item}")

    def _connect(self, source: str) -> Stream:
        p = self._p
        other = next((o for a in p.world.agents for o in a.children.values() if o.serve == source), None)
        if other is None or not other.alive:
            raise Astray("nobody is there")
        if not p.world.network.reaches(p.agent.index, other.agent.index, "ranks"):
            raise Astray("it cannot be reached")
        stream = other.feed.ask(p)
        p.world.fabric.streams.append(stream)
        self._source = other
        return stream

    def _block(self, stream: Stream) -> Thread:
        """The user's block, with the results that the collectives had there."""
        p, s = self._p, self._p.world.scenario
        local, total = mix(self._local, 3), 0
        yield p.world.lag(s.forward_s)
        p.at("following")
        for _ in range(s.collectives):
            item = yield from self._result_or_end(stream)
            if item is None:
                return  # nothing has changed: it stands where its block began
            total = mix(total, item.value)
        yield p.world.lag(0.004)
        if s.late_collective and (yield from self._result_or_end(stream)) is None:
            raise Astray("changed here and not there")
        done = yield from self._next(stream)
        if not isinstance(done, Committed):
            raise Astray("the block ended here and not there")
        self._shared, self._local = mix(self._shared, total), mix(local, 5) if s.noise else local
        self._step += 1
        news = p.ahead.mind()
        if not self.follows and done.newest[0] - done.step <= CLOSE:
            self.follows, news = "yes", True
        if news:
            p.report_parked(0)

    def _result_or_end(self, stream: Stream) -> Thread:
        item = yield from self._next(stream)
        if isinstance(item, Ended):
            self._ended = item
            return None
        if not isinstance(item, Result):
            raise Astray("another collective")
        return item

    def _next(self, stream: Stream) -> Thread:
        p = self._p

        def ready() -> bool:
            return bool(stream.items) or not stream.open or p.is_wanted

        while not ready():
            yield ready
        if p.is_wanted:
            raise Astray("a place is free")
        if not stream.items:
            raise Astray("no more is told")
        return stream.items.popleft()

    def _arrive(self) -> int:
        """Stand where the other stands, and make sure of it."""
        ended = self._ended
        if ended is None or ended.step < 0 or not ended.past:
            raise Astray("it has nothing to hand over")
        if (ended.step, ended.shared) != (self._step, self._shared):
            raise Astray(f"it stands at step {ended.step}, and this process at {self._step}")
        p = self._p
        p.stand_at(ended.step, ended.shared, ended.local, ended.light, ended.between)
        if self._source is not None:
            p.world.promises.on_followed(p, self._source, ended.generation)
        return ended.generation


class Ahead:
    """The group of a membership to come, as in `onward/train/ahead.py`: each calls all others, beside what it does."""

    def __init__(self, process: RankProcess) -> None:
        self._p = process
        self._name = ""
        self._there: list[RankProcess] = []
        self._told = False

    @property
    def joined(self) -> str:
        return self._name if self._there else ""

    def concerns(self, order: RankOrder) -> bool:
        return (bool(order.join) and order.join != self._name) or (bool(self._there) and not self._told)

    def mind(self) -> bool:
        order = self._p.order
        if order is not None and order.join and order.join != self._name:
            self._name, self._there, self._told = order.join, [], False
            w = self._p.world
            w.after(w.lag(0.02), self._come, order.join)
        news, self._told = bool(self._there) and not self._told, bool(self._there)
        return news

    def take(self, name: str) -> list[RankProcess]:
        there = self._there if self._name == name else []
        self._name, self._there, self._told = "", [], False
        return there

    def _come(self, name: str) -> None:
        """This process has come to the meeting: whoever is the last finds all the others there, or nobody does."""
        p = self._p
        if not p.alive or self._name != name:
            return
        others = [o for a in p.world.agents for o in a.children.values() if o.alive and o.ahead._name == name]
        here = sorted({o.rank: o for o in others}.values(), key=lambda o: o.rank)
        near = all(p.world.network.reaches(p.agent.index, o.agent.index, "ranks") for o in here)
        if len(here) < p.world.scenario.world_size or not near:
            return
        for o in here:
            p.world.after(p.world.lag(0.01), o.ahead._connected, name, here)

    def _connected(self, name: str, here: list[RankProcess]) -> None:
        if self._p.alive and self._name == name:
            self._there = list(here)
            self._p.poke()
