"""The promises of docs/promises.md that histories can show, each under its own name.

Each looks at histories chosen for it, beyond the default seeds, and plants a mistake that must be told as a breach of
just this promise: a promise that cannot be broken here would say nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from .mutants import MUTANTS, planted
from .scenario import CONTROL, Scenario, draw
from .tell import ENDS, explain
from .world import Outcome, World, simulate

FIRST = 100_000  # beyond any seeds that the default run looks at
LOOKED_AT = 12


def histories(choose: Callable[[Scenario], bool]) -> list[Outcome]:
    """The first histories whose scenario is of the wanted kind."""
    seeds = (seed for seed in range(FIRST, FIRST + 100 * LOOKED_AT) if choose(draw(Random(seed))))
    return [simulate(seed) for seed, _ in zip(seeds, range(LOOKED_AT), strict=False)]


def all_kept(found: list[Outcome]) -> None:
    assert len(found) == LOOKED_AT
    for outcome in found:
        assert not outcome.broken, explain(outcome)


def is_noticed(promise: int, mistake: str) -> None:
    mutant = next(m for m in MUTANTS if m.name == mistake)
    with planted(mutant):
        told = (o.broken for o in map(simulate, range(300)) if o.broken)
        assert any(why.startswith(f"promise {promise}:") for why in told), "in none of so many histories"


def test_at_most_one_generation_commits_steps() -> None:
    found = histories(lambda s: s.nodes > 1 and any(f.kind in ("cut", "partition", "manager-usurp") for f in s.faults))
    all_kept(found)
    assert any(o.fired for o in found)
    is_noticed(1, "two managers in a term")
    is_noticed(1, "old store")


def test_no_committed_step_is_lost_while_one_complete_copy_survives_and_none_is_applied_twice() -> None:
    found = histories(lambda s: s.library and any(f.kind in ("kill", "kill-node") for f in s.faults))
    all_kept(found)
    assert sum(o.restarts for o in found) >= LOOKED_AT // 2
    is_noticed(2, "gate ajar")
    is_noticed(2, "double commit")


def test_every_fault_ends_running_succeeded_or_failed_with_a_reason() -> None:
    found = histories(lambda s: len(s.faults) >= 2)
    all_kept(found)
    assert {o.phase for o in found} <= set(ENDS)
    is_noticed(3, "same term")


def test_the_job_outlives_its_control_plane() -> None:
    found = histories(lambda s: bool(s.faults) and s.control_only and any(f.kind in CONTROL for f in s.faults))
    all_kept(found)
    assert {o.phase for o in found} == {"Succeeded"}
    assert {o.incidents for o in found} == {0}, "no rank noticed"
    managers = [World(o.seed) for o in found if any(f.kind == "manager-kill" for f in o.scenario.faults)]
    for world in managers:
        world.run()
    assert any(world.promises.last_term > 1 for world in managers), "in some history a new manager went on"


def test_the_budget_is_honest_across_restarts_of_anything() -> None:
    found = histories(lambda s: any(f.kind == "manager-kill" for f in s.faults) and not s.control_only)
    all_kept(found)
    assert any(o.restarts for o in found)
    is_noticed(6, "budget forgotten")
