"""Who is slow: the one that is, soon; nobody, when all are alike, however much they differ from step to step."""

from __future__ import annotations

from random import Random

import pytest

from onward.core.stragglers import HOLD_S, WINDOW, Effort, Watch, judge

ONE = dict.fromkeys(range(64), "m")


class Driven:
    """Ranks that take a step each time the clock is turned, and a watch on them."""

    def __init__(self, world: int = 4, machines: dict[int, str] = ONE) -> None:
        self.world, self.machines = world, machines
        self.steps: dict[int, list[Effort]] = {r: [] for r in range(world)}
        self.watch = Watch()
        self.now = 0.0
        self.ever: set[int] = set()

    def step(self, times: list[float], queued: list[float] | None = None, took_s: float = 0.5) -> None:
        self.now += took_s
        for rank, t in enumerate(times):
            self.steps[rank].append(Effort(t, queued[rank] if queued else 0.0))
        self.watch = judge(self.watch, self.steps, self.machines, self.world, self.now)
        self.ever |= set(self.watch.slow)

    @property
    def slow(self) -> list[int]:
        return sorted(self.watch.slow)


def test_a_slow_rank_is_named_after_some_steps_and_cleared_when_it_passes() -> None:
    d = Driven()
    for _ in range(10):
        d.step([0.1] * 4)
    assert d.slow == []
    needed = 0
    while not d.slow:
        d.step([0.1, 0.1, 0.3, 0.1])
        needed += 1
        assert needed <= WINDOW + HOLD_S / 0.5 + 1
    assert d.slow == [2]
    assert "rank 2 is slow: it computes 300 ms a step, the others 100 ms, 3.0 times as long" in d.watch.slow[2]
    for _ in range(WINDOW):
        d.step([0.1] * 4)
    assert d.slow == []
    assert d.ever == {2}


def test_a_few_slow_steps_are_nothing() -> None:
    d = Driven()
    for n in range(100):
        d.step([0.1, 0.1, 0.9 if n % 10 < 3 else 0.1, 0.1])
    assert not d.ever


def test_long_steps_need_no_more_of_them() -> None:
    d = Driven()
    for _ in range(WINDOW):
        d.step([20.0] * 4, took_s=30.0)
    for _ in range(WINDOW):
        d.step([20.0, 40.0, 20.0, 20.0], took_s=60.0)
    assert d.slow == [1]


def test_between_the_two_limits_a_rank_keeps_the_name_it_has() -> None:
    d = Driven()
    for _ in range(30):
        d.step([0.1, 0.1, 0.1, 0.14])
    assert not d.ever, "40 percent are not enough to be called slow"
    for _ in range(30):
        d.step([0.1, 0.1, 0.1, 0.2])
    for _ in range(30):
        d.step([0.1, 0.1, 0.1, 0.14])
    assert d.slow == [3], "but too much to be called so no more"


def test_a_difference_of_some_milliseconds_is_not_worth_a_word() -> None:
    d = Driven()
    for _ in range(50):
        d.step([0.002, 0.002, 0.010, 0.002], took_s=0.1)
    assert not d.ever


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_one_of_any_number(world: int) -> None:
    d = Driven(world)
    for _ in range(40):
        d.step([0.4 if r == world - 1 else 0.1 for r in range(world)])
    assert d.slow == [world - 1]


def test_both_ranks_of_a_slow_node() -> None:
    d = Driven()
    for _ in range(40):
        d.step([0.1, 0.1, 0.4, 0.4])
    assert d.slow == [2, 3]


@pytest.mark.parametrize("seed", range(20))
def test_a_long_uniform_run_has_no_straggler(seed: int) -> None:
    """Times of all ranks go up and down together, each with noise of its own, and now and then one has a hiccup."""
    rng = Random(seed)
    d = Driven(rng.choice([2, 4, 8]))
    load = 1.0
    for _ in range(1500):
        load = min(8.0, max(1.0, load * rng.choice([0.9, 1.0, 1.0, 1.1])))
        base = 0.1 * load
        times = [base * rng.lognormvariate(0.0, 0.25) * (6 if rng.random() < 0.02 else 1) for _ in range(d.world)]
        d.step(times, took_s=0.2)
    assert not d.ever


@pytest.mark.parametrize("seed", range(10))
def test_on_a_full_machine_whoever_waits_for_a_processor_is_not_to_blame(seed: int) -> None:
    """A scheduler lets one wait for seconds, then another: one machine, one fate."""
    rng = Random(seed)
    d = Driven()
    unlucky = 0
    for n in range(1000):
        if n % 60 == 0:
            unlucky = rng.randrange(4)
        queued = [0.06 if r == unlucky else 0.005 for r in range(4)]
        d.step([0.01 * rng.lognormvariate(0, 0.2) + q for q in queued], queued, took_s=0.1)
    assert not d.ever


def test_a_machine_that_is_fuller_than_the_others_is() -> None:
    machines = {0: "a", 1: "a", 2: "b", 3: "b"}
    d = Driven(4, machines)
    for _ in range(50):
        d.step([0.1, 0.1, 0.3, 0.25], [0.0, 0.0, 0.2, 0.15])
    assert d.slow == [2, 3]
    assert "no processor is free on its machine" in d.watch.slow[2]


def test_with_too_little_known_nothing_is_said_and_nothing_taken_back() -> None:
    named = Watch(slow={1: "why"})
    few = {r: [Effort(0.1)] * 2 for r in range(4)}
    assert judge(named, few, ONE, 4, 9.0).slow == {1: "why"}
    some = {r: [Effort(0.1)] * 8 for r in (0, 2)}
    assert judge(named, some, ONE, 4, 9.0).slow == {1: "why"}
    assert judge(named, {0: some[0]}, ONE, 4, 9.0).slow == {1: "why"}
