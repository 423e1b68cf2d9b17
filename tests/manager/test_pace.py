"""From compute times in facts to sub-health in the outlook and on screen."""

from __future__ import annotations

from dataclasses import replace

from test_bulletin import Driven

from onward.core.facts import Progress
from onward.core.job import Phase


def train(d: Driven, times: dict[int, float], steps: int, first: int) -> int:
    """Steps of half a second. Returns the next one."""
    for step in range(first, first + steps):
        d.now += 0.5
        for rank, f in d.ranks.items():
            d.ranks[rank] = replace(f, progress=Progress(step=step, compute_s=times.get(rank, 0.1)))
        d.speak()
    return first + steps


def test_a_straggler_is_sub_health_of_its_rank_and_node_until_it_passes() -> None:
    d = Driven(standby=0)
    step = train(d, {}, 10, 21)
    assert not d.orders["a0"].conditions
    step = train(d, {3: 0.4}, 20, step)
    outlook = d.logic._outlook(d.now)
    assert list(outlook.slow) == [3]
    assert "rank 3 is slow: it computes 400 ms a step" in outlook.sub_health[1]
    (condition,) = d.orders["a0"].conditions
    assert (condition.kind, condition.node, condition.rank) == ("slow", 1, 3)
    assert 0 < d.now + d.settings.wall_s - condition.since < 20
    assert d.phase is Phase.RUNNING
    assert d.logic.job is not None
    assert d.logic.job.incidents == 0, "an observation, not a fault"
    train(d, {}, 12, step)
    assert not d.orders["a0"].conditions
    assert not d.logic._outlook(d.now).sub_health


def test_a_straggler_keeps_its_name_through_the_recovery_of_another_and_a_new_process_does_not_inherit_it() -> None:
    d = Driven(standby=0)
    step = train(d, {3: 0.4}, 25, 21)
    d.report("restart", rank="0")
    d.recover()
    d.speak()
    assert [c.rank for c in d.orders["a0"].conditions if c.kind == "slow"] == [3]
    train(d, {3: 0.4}, 3, step)
    d.report("restart", "c2", rank="3")
    d.recover()
    d.speak()
    assert [c.rank for c in d.orders["a0"].conditions if c.kind == "slow"] == []


def test_what_is_not_known_is_not_judged() -> None:
    d = Driven(standby=0)
    train(d, dict.fromkeys(range(4), 0.0), 30, 21)
    assert not d.orders["a0"].conditions
