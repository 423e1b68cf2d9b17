"""Promise 4: a gang holds all it needs or nothing.

Random clusters live through random histories: gangs come, end and lose pods, nodes come, go and are cordoned, binds
fail half-way, the scheduler dies. After each pass everything that can be seen is checked by a judge that knows only
the rules, node by node, and nothing of the board's trees.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shapes import GI, HOSTNAME, affinity, queues

from onward.core.board import Board
from onward.core.gang import Gang, Outcome
from onward.core.placement import Room, Wish, barred
from onward.core.turns import Memory, Queue, take_turns

TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}


@dataclass
class Job:
    """A gang as its owner sees it."""

    name: str
    wishes: dict[str, Wish]
    minimum: int
    minima: dict[str, int]
    created: int
    priority: int
    queue: str
    bound: dict[str, str] = field(default_factory=dict)  # pod -> node
    started: bool = False

    def gang(self) -> Gang:
        tasks = Counter(self.wishes[key].task for key in self.bound)
        return Gang(
            f"default/{self.name}",
            [wish for key, wish in self.wishes.items() if key not in self.bound],
            min_member=self.minimum,
            min_task=self.minima,
            held=len(self.bound),
            held_tasks=tasks,
            started=self.started,
            priority=self.priority,
            created=float(self.created),
            since=float(self.created),
            queue=self.queue,
        )

    def whole(self) -> bool:
        tasks = Counter(self.wishes[key].task for key in self.bound)
        minima = self.minima if sum(self.minima.values()) <= self.minimum else {}
        return len(self.bound) >= self.minimum and all(tasks[t] >= n for t, n in minima.items())


class World:
    """What an API server would hold, and what is written to it."""

    def __init__(self, rooms: list[Room]) -> None:
        self.rooms = {room.name: room for room in rooms}
        self.jobs: dict[str, Job] = {}
        self.queues = (Queue("small", weight=2, capability={"cpu": 6000}),)
        self.start_again()

    def start_again(self) -> None:
        """A new scheduler: it knows what is written, and nothing else."""
        self.board, self.memory = Board(self.rooms.values()), Memory()
        for job in self.jobs.values():
            for key, node in job.bound.items():
                self.board.put(job.wishes[key], node)

    def one_pass(self, now: float, binds: int | None) -> list[Outcome]:
        """`binds`: after so many writes the scheduler dies."""
        waiting = [job.gang() for job in self.jobs.values() if len(job.bound) < len(job.wishes)]
        known = queues(*(replace(q, used=self._used(q.name)) for q in self.queues))
        outcomes = take_turns(self.board, waiting, known, now, patience_s=5.0, memory=self.memory)
        self.judge(outcomes)
        left = binds
        for outcome in outcomes:
            job = self.jobs[outcome.gang.key.partition("/")[2]]
            for key, node in outcome.nodes.items():
                if left is not None:
                    if not left:
                        self.start_again()
                        return outcomes
                    left -= 1
                job.bound[key] = node
            job.started = job.started or job.whole()
        for outcome in outcomes:
            self._release(outcome)
        return outcomes

    def _release(self, outcome: Outcome) -> None:
        """As the loop does: half a gang that cannot be completed gives back what it holds."""
        job = self.jobs[outcome.gang.key.partition("/")[2]]
        if outcome.waits and job.bound and not job.started:
            for key in list(job.bound):
                del job.bound[key]
                self.board.drop(key)

    def _used(self, queue: str) -> dict[str, int]:
        used: Counter[str] = Counter()
        for job in self.jobs.values():
            if job.queue == queue:
                for key in job.bound:
                    used.update(job.wishes[key].requests)
        return dict(used)

    # The judge

    def judge(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            gang, got = outcome.gang, len(outcome.nodes)
            assert set(outcome.nodes) | set(outcome.left) == {wish.key for wish in gang.pending}
            if gang.started:
                continue
            if outcome.waits:
                assert not outcome.nodes, "a gang that waits holds something"
            else:
                assert gang.held + got >= gang.min_member, "a gang was given less than it needs"
                job = self.jobs[gang.key.partition("/")[2]]
                after = replace(job, bound={**job.bound, **outcome.nodes})
                assert after.whole(), "a task was given less than it needs"
        self._judge_board()

    def _judge_board(self) -> None:
        there: dict[str, list[Wish]] = {name: list(spot.residents.values()) for name, spot in self.board.spots.items()}
        assert set(there) == set(self.rooms)
        for name, wishes in there.items():
            room = self.rooms[name]
            used: Counter[str] = Counter()
            for wish in wishes:
                used.update(wish.requests)
            for resource, value in used.items():
                assert value <= room.allocatable.get(resource, 0), f"{name} has given away more {resource} than it has"
            spot = self.board.spots[name]
            for resource, which in self.board.resources.items():
                taken = len(wishes) if resource == "pods" else used[resource]
                assert spot.free[which] == room.allocatable.get(resource, 0) - taken, "the board has miscounted"
            for wish in wishes:
                if wish.apart:
                    job = wish.labels["job"]
                    assert sum(other.labels["job"] == job for other in wishes) == 1, "two pods of a gang on one host"
        for job in self.jobs.values():
            for wish in job.wishes.values():
                node = self.board.holds(wish.key)
                if node and wish.key not in job.bound:
                    assert not barred(wish, self.rooms[node]), "a new pod on a node it may not go to"
                    assert node not in wish.exclude


@st.composite
def rooms(draw: st.DrawFn) -> list[Room]:
    found = []
    for i in range(draw(st.integers(1, 6))):
        have = {"cpu": draw(st.sampled_from([1, 2, 4, 8])) * 1000, "memory": 16 * GI, "pods": draw(st.integers(1, 6))}
        have["nvidia.com/gpu"] = draw(st.integers(0, 4))
        labels = {HOSTNAME: f"n{i}", "pool": draw(st.sampled_from("ab"))}
        taints = [TAINT] if draw(st.integers(0, 5)) == 0 else []
        found.append(Room(f"n{i}", labels, have, taints, draw(st.integers(0, 7)) == 0))
    return found


@st.composite
def jobs(draw: st.DrawFn, name: str, created: int) -> Job:
    apart = affinity("podAntiAffinity", job=name) if draw(st.booleans()) else {}
    wishes, minima = {}, {}
    for task in ("master", "worker")[: draw(st.integers(1, 2))]:
        count = draw(st.integers(1, 4))
        minima[task] = draw(st.integers(0, count))
        requests = {"cpu": draw(st.integers(1, 3)) * 1000, "nvidia.com/gpu": draw(st.integers(0, 2))}
        where = {"pool": draw(st.sampled_from("ab"))} if draw(st.integers(0, 3)) == 0 else {}
        tolerations = [{"key": "team", "operator": "Exists"}] if draw(st.booleans()) else []
        exclude = frozenset({"n0"}) if draw(st.integers(0, 5)) == 0 else frozenset()
        for i in range(count):
            wish = Wish(
                f"default/{name}-{task}-{i}", "default", {"job": name, "index": str(i)}, requests, where, apart,
                tolerations, exclude=exclude, task=task, prefer=draw(st.sampled_from(["", "n0", "n1", "gone"])),
            )  # fmt: skip
            wishes[wish.key] = wish
    minimum = draw(st.integers(1, len(wishes)))
    queue = draw(st.sampled_from(["default", "default", "small"]))
    return Job(name, wishes, minimum, minima, created, draw(st.integers(0, 1)), queue)


def _end(world: World, name: str) -> None:
    for key in world.jobs.pop(name).bound:
        world.board.drop(key)


def _lose_node(world: World, name: str) -> None:
    """With all that was on it."""
    del world.rooms[name]
    world.board.remove(name)
    for job in world.jobs.values():
        for key in [key for key, node in job.bound.items() if node == name]:
            del job.bound[key]
            world.board.drop(key)
        job.started = job.started and bool(job.bound)


def _cordon(world: World, name: str) -> None:
    room = replace(world.rooms[name], unschedulable=not world.rooms[name].unschedulable)
    world.rooms[name] = room
    world.board.add(room)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_a_gang_holds_all_it_needs_or_nothing(data: st.DataObject) -> None:
    world = World(data.draw(rooms()))
    for now in range(data.draw(st.integers(3, 12))):
        what = data.draw(st.sampled_from(["come", "come", "end", "lose", "cordon", "crash", "again", "pass"]))
        names, nodes = sorted(world.jobs), sorted(world.rooms)
        binds = None
        if what == "come":
            world.jobs[f"j{now}"] = data.draw(jobs(f"j{now}", now))
        elif what == "end" and names:
            _end(world, data.draw(st.sampled_from(names)))
        elif what == "lose" and len(nodes) > 1:
            _lose_node(world, data.draw(st.sampled_from(nodes)))
        elif what == "cordon":
            _cordon(world, data.draw(st.sampled_from(nodes)))
        elif what == "crash":
            binds = data.draw(st.integers(0, 4))
        elif what == "again":
            world.start_again()
        world.one_pass(float(now), binds)
        if binds is None:  # the scheduler lived: what is bound is whole, or was
            for job in world.jobs.values():
                assert not job.bound or job.started, f"{job.name} holds {len(job.bound)} of {job.minimum}"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_gang_of_equal_pods_waits_only_when_it_does_not_fit(data: st.DataObject) -> None:
    """Counted by hand: as many as fit on each node, or one where hosts must differ."""
    world = World(data.draw(rooms()))
    job = data.draw(jobs("j", 0))
    first = next(iter(job.wishes.values()))
    equal = {f"default/j-{i}": replace(first, key=f"default/j-{i}") for i in range(data.draw(st.integers(1, 8)))}
    job = replace(job, wishes=equal, minimum=len(equal), minima={}, queue="default")
    room = 0
    for node in world.rooms.values():
        if not barred(first, node) and node.name not in first.exclude:
            fits = min(node.allocatable.get(name, 0) // value for name, value in first.needs)
            room += min(1, fits) if first.apart else fits
    world.jobs["j"] = job
    outcome = world.one_pass(0.0, None)[0]
    assert outcome.waits == (room < len(equal))
    if outcome.waits:
        assert outcome.could == room
        assert outcome.message.startswith(f"0/{len(world.rooms)} nodes are available: ")
