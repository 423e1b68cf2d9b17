"""Hot switch: whom it is for, who stands in, and when it is undone."""

from __future__ import annotations

from dataclasses import replace

from onward.core.facts import RankFacts, Stage
from onward.core.membership import Member, Outlook
from onward.core.switch import FOLLOW_S, MOST_TRIES, Switch, choose, hold_all, judge, settled

A, B, C = (Member(id=name) for name in "abc")
PLACES = (A, B)
SICK = Outlook(here=(A, B, C), sub_health={1: "slow"})
SWITCH = Switch(1, C, "slow", until=60.0)
PARKED = RankFacts(rank=1, node=1, incarnation=2, stage=Stage.PARKED)


def test_only_for_a_sick_node_and_only_with_somebody_free() -> None:
    assert choose(PLACES, SICK, (), 0.0, 60.0) == SWITCH
    assert choose(PLACES, replace(SICK, sub_health={}), (), 0.0, 60.0) is None
    assert choose(PLACES, replace(SICK, here=(A, B)), (), 0.0, 60.0) is None
    assert choose((A, None), SICK, (), 0.0, 60.0) is None, "a vacant place is filled, not switched"


def test_who_failed_once_is_not_asked_again_and_a_node_not_for_ever() -> None:
    other = Member(id="d")
    outlook = replace(SICK, here=(A, B, C, other))
    found = choose(PLACES, outlook, ((1, "c"),), 0.0, 60.0)
    assert found is not None
    assert found.member == other
    assert choose(PLACES, outlook, tuple((1, f"x{i}") for i in range(MOST_TRIES)), 0.0, 60.0) is None


def test_it_is_ready_when_every_process_is() -> None:
    assert judge(SWITCH, SICK, {}, {1: 2}, 1.0).word == ""
    assert judge(SWITCH, SICK, {1: replace(PARKED, stage=Stage.SETUP)}, {1: 2}, 1.0).word == ""
    assert judge(SWITCH, SICK, {1: replace(PARKED, incarnation=1)}, {1: 2}, 1.0).word == "", "of another try"
    assert judge(SWITCH, SICK, {1: PARKED}, {1: 2, 3: 2}, 1.0).word == ""
    assert judge(SWITCH, SICK, {1: PARKED}, {1: 2}, 1.0).word == "ready"


def test_it_is_undone_with_a_reason() -> None:
    well = replace(SICK, sub_health={})
    assert "well again" in judge(SWITCH, well, {1: PARKED}, {1: 2}, 1.0).why
    assert "gone or not fit" in judge(SWITCH, replace(SICK, here=(A, B)), {1: PARKED}, {1: 2}, 1.0).why
    assert "ended before" in judge(SWITCH, SICK, {1: replace(PARKED, stage=Stage.EXITED)}, {1: 2}, 1.0).why
    late = judge(SWITCH, SICK, {}, {1: 2}, 60.0)
    assert (late.word, "not ready in time" in late.why) == ("undo", True)


def test_where_ranks_can_be_followed_it_is_ready_when_it_keeps_up_or_cannot() -> None:
    assert judge(SWITCH, SICK, {1: PARKED}, {1: 2}, 1.0, followed=[0, 1]).word == ""
    ready = judge(SWITCH, SICK, {1: replace(PARKED, follows="yes")}, {1: 2}, 1.0, followed=[0, 1])
    assert (ready.word, "follows rank 1" in ready.why) == ("ready", True)
    assert judge(SWITCH, SICK, {1: replace(PARKED, follows="no")}, {1: 2}, 1.0, followed=[0, 1]).word == "ready"
    late = SWITCH.until + FOLLOW_S
    assert judge(SWITCH, SICK, {1: PARKED}, {1: 2}, late, followed=[0, 1]).word == "ready", "it is there, after all"


def test_one_that_follows_is_waited_for_at_the_fence() -> None:
    follows = replace(PARKED, follows="yes")
    assert not settled({1: follows}, {1: 2}, 7)
    assert not settled({1: replace(follows, generation=6, step=40)}, {1: 2}, 7), "it stood at another fence"
    there = replace(follows, generation=7, step=40)
    assert settled({1: there}, {1: 2}, 7)
    assert hold_all({1: there}, {1: 2}, 7)
    assert not hold_all({1: there}, {1: 2, 3: 2}, 7)
    assert not hold_all({1: PARKED}, {1: 2}, 7)
    assert settled({1: replace(PARKED, follows="no")}, {1: 2}, 7)
    assert settled({1: PARKED}, {1: 2}, 7)
