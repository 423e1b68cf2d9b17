"""Nodes that stand by prepare for places before anybody is lost: which, and when."""

from __future__ import annotations

from dataclasses import replace

from onward.core.facts import Progress, RankFacts, Stage
from onward.core.job import Job, Limits, Phase, new_job
from onward.core.membership import Member, Outlook, fill
from onward.core.policy import Policy
from onward.core.standby import CALM_STEPS, MOST_PLACES, to_prepare
from onward.core.switch import Switch, choose

A, B, C, X, Y = (Member(id=name) for name in "abcxy")
HERE = Outlook(here=(A, B, C, X, Y))


def running(*policies: Policy) -> Job:
    job = new_job(3, policies or (Policy.RECOVER, Policy.EXIT), Limits(), (A, B, C))
    return replace(job, phase=Phase.RUNNING, begun=True)


def at_step(step: int) -> dict[int, RankFacts]:
    fact = RankFacts(rank=0, node=0, incarnation=1, stage=Stage.TRAINING, resumed=True, progress=Progress(step=step))
    return {r: replace(fact, rank=r, node=r) for r in range(3)}


def test_together_they_prepare_for_as_many_places_as_they_can() -> None:
    found = to_prepare(running(), at_step(CALM_STEPS), HERE)
    assert set(found) == {"x", "y"}, "those that have a place have their own spares"
    assert all(len(set(places)) == MOST_PLACES for places in found.values())
    assert {i for places in found.values() for i in places} == {0, 1, 2}


def test_nobody_begins_before_all_have_made_some_steps() -> None:
    assert to_prepare(running(), at_step(CALM_STEPS - 1), HERE) == {"x": (), "y": ()}
    late = at_step(CALM_STEPS) | {1: replace(at_step(0)[1], stage=Stage.SETUP)}
    assert to_prepare(running(), late, HERE) == {"x": (), "y": ()}


def test_what_was_begun_is_gone_on_with_whoever_else_comes_and_while_all_pause() -> None:
    begun = replace(HERE, here=(A, B, C, Y, X), ahead={"x": (2, 1)})
    found = to_prepare(running(), at_step(9), begun)
    assert found["x"] == (2, 1)
    assert 0 in found["y"], "where nobody is ready yet"
    paused = replace(running(), phase=Phase.PAUSING)
    assert to_prepare(paused, {}, begun) == {"x": (2, 1), "y": ()}


def test_it_is_for_recover_and_for_those_who_are_free() -> None:
    assert to_prepare(running(Policy.EXIT), at_step(9), HERE) == {}
    assert to_prepare(replace(running(), phase=Phase.FAILED), at_step(9), HERE) == {}
    busy = replace(running(), switch=Switch(0, X, "slow", 99.0), given_up=("y",))
    assert to_prepare(busy, at_step(9), HERE) == {}


def test_who_has_prepared_for_a_place_is_given_it() -> None:
    assert fill((A, None, None), (A, X, Y), ahead={"x": (2,), "y": (1,)}) == (A, Y, X)
    assert fill((A, None, C), (A, X, Y), ahead={"y": (1, 2)}) == (A, Y, C)
    assert fill((A, None, C), (A, X, Y), ahead={}) == (A, X, C)
    sick = replace(HERE, sub_health={1: "slow"}, ahead={"y": (1,)})
    switch = choose((A, B, C), sick, (), 0.0, 60.0)
    assert switch is not None
    assert switch.member == Y
