"""Thousands of small jobs in a hostile world: every promise holds after every event, and every mutant is caught."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random

import pytest

from onward.core.policy import Policy

from .cases import CASES, Case
from .conftest import DEFAULT_SEEDS
from .mutants import ELASTIC_MUTANTS, MOVE_MUTANTS, MUTANTS, SHORT_MUTANTS, SWITCH_MUTANTS, Mutant, planted
from .scenario import (
    BLOCK_POINTS,
    CONTROL,
    DEADLY,
    LINKS,
    NODES,
    RAISED,
    RECOVERY_POINTS,
    STEP_POINTS,
    SWITCHING,
    draw,
    draw_elastic,
    draw_move,
    draw_short,
    draw_swap,
    draw_switch,
)
from .tell import ENDS, LAST_LINES, explain
from .world import World, simulate

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def on_all_cores() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:
        yield pool


def test_promises_hold(seeds: range, on_all_cores: ProcessPoolExecutor) -> None:
    for outcome in on_all_cores.map(simulate, seeds, chunksize=10):
        assert not outcome.broken, explain(outcome)
        assert outcome.phase in ENDS, explain(outcome)


def test_replay(replayed: int) -> None:
    outcome = simulate(replayed)
    assert not outcome.broken, explain(outcome)


def test_same_seed_same_history() -> None:
    for seed in range(0, 60, 3):
        once, again = simulate(seed, trace=True), simulate(seed, trace=True)
        assert once.digest == again.digest
        assert once.events == again.events


def test_same_history_in_another_process() -> None:
    """String hashes differ from process to process; no order may depend on them."""
    code = "from tests.simulation.world import simulate; print([simulate(s, trace=True).digest for s in range(12)])"
    told = set()
    for salt in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": salt}
        command = [sys.executable, "-c", code]
        told.add(subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(told) == 1


@pytest.mark.nightly
def test_every_kind_of_fault_fires() -> None:
    kinds: Counter[str] = Counter()
    points: Counter[str] = Counter()
    phases: Counter[str] = Counter()
    links: Counter[str] = Counter()
    terms = 0
    for seed in range(400):
        world = World(seed)
        phases[world.run().phase] += 1
        links.update(f.links for f in world.fired if f.kind == "cut")
        terms = max(terms, len({m.host for m in world.seen_in_office}))
        kinds.update(f.kind for f in world.fired)
        points.update(f.point for f in world.fired if f.point)
    assert set(LINKS) == set(links)
    assert terms > 1, "in some history managers of different nodes were in office"
    everything = {*DEADLY, *RAISED, *CONTROL, *NODES, "bug", "drop", "kill-spare", "pause-process", "start-fails"}
    assert everything <= set(kinds)
    assert {*BLOCK_POINTS, *STEP_POINTS, *RECOVERY_POINTS} <= set(points)
    assert phases["Succeeded"] > 300
    assert phases["Failed"] > 0


SOON = (  # caught by one of the first seeds
    "old store",
    "double commit",
    "budget forgotten",
    "gate ajar",
    "published too late",
    "old votes",
    "place given twice",
    "two managers in a term",
    "any end is a good one",
)
_SOME = [m if m.name in SOON else pytest.param(m, marks=pytest.mark.nightly) for m in MUTANTS]


@pytest.mark.parametrize("mutant", _SOME, ids=lambda m: m.name.replace(" ", "-"))
def test_mutant_is_caught(mutant: Mutant) -> None:
    with planted(mutant):
        for seed in range(DEFAULT_SEEDS):
            if draw(Random(seed)).nodes >= mutant.nodes and simulate(seed).broken:
                return
    pytest.fail(f"no default seed notices that {mutant.what}")


def kept(history: Callable[..., World], seed: int, name: str) -> World:
    """It has run to one of its ends, and every promise held; else its story is told."""
    world = history(seed)
    outcome = world.run()
    if outcome.broken or outcome.phase not in ENDS:
        story = "\n".join((history(seed, trace=True).run().trace or [])[-LAST_LINES:])
        pytest.fail(f"{name} {seed}: {outcome.broken}\n{story}\n{outcome.scenario}")
    return world


def switched(seed: int, trace: bool = False) -> World:
    draw_one = draw_swap if seed % 4 == 3 else draw_switch
    return World(seed, trace=trace, scenario=draw_one(Random(seed)))


_MORE_SWITCHES = pytest.param(range(24, 600), marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])


_FOUND = {
    "what a partner had kept was not there in time when a node died, or was old": (343, 607, 736, 754, 984),
    "the stand-in stopped following in the last step, and had fetched too early what was kept": (266, 669, 911, 1170),
    "it lost what it had followed to, and was not told where to fetch it": (1421,),
    "one hung before anybody had come to the end of the step, and all were taken for hung": (1468,),
    "code that had been run before the swap was run again": (2640, 2729),
}


@pytest.mark.parametrize("story", _FOUND)
def test_what_a_switch_had_lost(story: str) -> None:
    for seed in _FOUND[story]:
        assert not World(seed, scenario=draw_switch(Random(seed))).run().broken, seed


@pytest.mark.parametrize("switches", [range(24), _MORE_SWITCHES], ids=str)
def test_promises_hold_while_a_node_is_switched(switches: range) -> None:
    kinds: Counter[str] = Counter()
    points: Counter[str] = Counter()
    followed = moved = 0
    for seed in switches:
        world = kept(switched, seed, "switch seed")
        kinds.update(f.kind for f in world.fired)
        points.update(f.point for f in world.fired if f.point)
        followed += world.promises.followed > 0
        moved += world.job is not None and world.job.moved > 0
    assert followed > len(switches) / 2
    assert moved > len(switches) / 2
    assert {"sub-health", "kill", "manager-kill"} <= set(kinds)
    if len(switches) > 100:
        assert {"stop", "cut", "kill-node", "raise-communication"} <= set(kinds)
        assert set(SWITCHING) <= set(points)


def test_a_switch_costs_no_step_whatever_the_policies() -> None:
    """A stand-in that loses sight of its rank needs what that rank alone knew, also where no lost node is replaced."""
    moved = 0
    for seed in range(20):
        scenario = draw_swap(Random(seed))
        scenario.policies = (Policy.RETRY, Policy.RECOVER_IN_PLACE, Policy.EXIT)
        scenario.faults = [f for f in scenario.faults if f.kind in ("sub-health", "drop-feed")]
        world = World(seed, scenario=scenario)
        assert not world.run().broken, seed
        assert world.attempts == 0, seed
        moved += world.job is not None and world.job.moved > 0
    assert moved > 10


def given_up(seed: int, trace: bool = False) -> World:
    return World(seed, trace=trace, scenario=draw_move(Random(seed)))


_MORE_MOVES = pytest.param(range(60, 2000), marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])


@pytest.mark.parametrize("moves", [range(60), _MORE_MOVES], ids=str)
def test_promises_hold_while_a_node_is_given_up(moves: range) -> None:
    """Its agent is there all the time, or its pod is replaced; others stand by, or nobody does."""
    kinds: Counter[str] = Counter()
    moved = replaced = began_anew = 0
    for seed in moves:
        world = kept(given_up, seed, "move seed")
        kinds.update(f.kind for f in world.fired)
        moved += world.job is not None and world.job.moved > 0
        replaced += world.replaced_pods > 0
        began_anew += world.attempts > 0
    assert moved > len(moves) / 2
    assert replaced > len(moves) / 4
    assert began_anew < len(moves) / 4
    assert {"kill", "manager-kill"} <= set(kinds)


def shrunk(seed: int, trace: bool = False) -> World:
    return World(seed, trace=trace, scenario=draw_elastic(Random(seed)))


_MORE_SHRINKS = pytest.param(range(30, 1000), marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])


@pytest.mark.parametrize("shrinks", [range(30), _MORE_SHRINKS], ids=str)
def test_promises_hold_while_a_job_goes_on_with_fewer(shrinks: range) -> None:
    """Nobody takes the place of a lost node in time, and somebody comes later; or there are too few, and all wait."""
    kinds: Counter[str] = Counter()
    went_on = grew = began_anew = 0
    for seed in shrinks:
        world = kept(shrunk, seed, "elastic seed")
        kinds.update(f.kind for f in world.fired)
        went_on += world.promises.shrunk > 0
        grew += world.promises.grown > 0
        began_anew += world.attempts > 0
    assert went_on > len(shrinks) / 2
    assert grew > len(shrinks) / 6
    assert began_anew < len(shrinks) / 3
    assert {"kill-node", "manager-kill"} <= set(kinds)
    if len(shrinks) > 100:
        assert {"kill", "stop", "hang", "cut", "raise-communication"} <= set(kinds)


def short(seed: int, trace: bool = False) -> World:
    return World(seed, trace=trace, scenario=draw_short(Random(seed)))


_MORE_STARTS = pytest.param(range(40, 1000), marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])


@pytest.mark.parametrize("starts", [range(40), _MORE_STARTS], ids=str)
def test_promises_hold_while_a_job_starts_again_with_fewer(starts: range) -> None:
    """It had gone on without a node, and then all that are left must start again, or there are too few for that."""
    kinds: Counter[str] = Counter()
    began = grew = too_few = 0
    for seed in starts:
        world = kept(short, seed, "short start, seed")
        kinds.update(f.kind for f in world.fired)
        began += world.promises.short > 0
        grew += world.promises.short > 0 and world.promises.grown > 0
        too_few += world.job is not None and "the job needs" in world.job.reason
    assert began > len(starts) / 4
    assert grew > len(starts) / 12
    assert too_few
    assert {"kill-node", "kill", "manager-kill", "raise-communication"} <= set(kinds)


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", ELASTIC_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_mutant_of_going_on_with_fewer_is_caught(mutant: Mutant) -> None:
    with planted(mutant):
        caught = any(shrunk(seed).run().broken for seed in range(400))
    assert caught, f"no seed notices that {mutant.what}"


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", SHORT_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_mutant_of_a_start_with_fewer_is_caught(mutant: Mutant) -> None:
    with planted(mutant):
        caught = any(short(seed).run().broken for seed in range(400))
    assert caught, f"no seed notices that {mutant.what}"


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", SWITCH_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_mutant_of_the_switch_is_caught(mutant: Mutant) -> None:
    with planted(mutant):
        caught = any(switched(seed).run().broken for seed in range(200))
    assert caught, f"no seed notices that {mutant.what}"


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", MOVE_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_mutant_of_the_move_is_caught(mutant: Mutant) -> None:
    with planted(mutant):
        caught = any(given_up(seed).run().broken for seed in range(400))
    assert caught, f"no seed notices that {mutant.what}"


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name.replace(" ", "-"))
def test_what_once_went_wrong(case: Case) -> None:
    fired = 0
    for seed in range(12):
        world = World(seed, trace=True, scenario=case.fresh())
        outcome = world.run()
        story = "\n".join((outcome.trace or [])[-LAST_LINES:])
        assert not outcome.broken, f"{case.story}\n{story}\n{outcome.broken}"
        assert outcome.phase == case.phase, f"{case.story}\n{story}"
        assert world.attempts <= case.attempts, f"{case.story}\n{story}"
        assert outcome.restarts <= case.restarts, f"{case.story}\n{story}"
        fired += len(world.fired) == len(world.scenario.faults) or case.phase == "Failed"
    assert fired, "in no seed did all the faults fire"
