"""Hot switch: whom it is for, who stands in, and when it is undone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onward.core.agreement import Agreement, Copy, agree
from onward.core.facts import FaultReport, RankFacts, Scope, Stage
from onward.core.job import Job, Limits, Phase, new_job
from onward.core.membership import Member, Outlook
from onward.core.policy import parse_policies
from onward.core.recovery import advance
from onward.core.switch import (
    CONNECT_S,
    FOLLOW_S,
    MOST_TRIES,
    SETTLE_S,
    Switch,
    choose,
    group_of,
    hold_all,
    judge,
    settled,
)

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


def test_a_new_manager_gives_the_stand_in_time_to_find_it() -> None:
    unheard, switch = replace(SICK, here=(A, B)), replace(SWITCH, heard_by=2.0)
    assert judge(switch, unheard, {}, {1: 2}, 1.0).word == "wait"
    assert judge(switch, unheard, {}, {1: 2}, 2.0).word == "undo"
    assert judge(switch, replace(unheard, gone=frozenset("c")), {}, {1: 2}, 1.0).word == "undo", "dead by a sure word"
    it = Driven().pausing()
    it.here = (A, B)
    assert it.job.switch is not None
    it.job = replace(it.job, switch=replace(it.job.switch, heard_by=it.now + 2.0))
    it.at_fence(0, 1)
    assert it.go().switch is not None, "nobody goes on before"
    assert it.go(2.0).phase is Phase.FORMING
    assert it.job.places == PLACES


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


class Driven:
    """A job of two nodes with one rank each, the second of them sick, and a stand-in that is ready to take over."""

    def __init__(self) -> None:
        policies = parse_policies("retry,recover-in-place,recover")
        job = new_job(2, policies, Limits(hot_switch=True), PLACES)
        self.job = replace(job, phase=Phase.RUNNING, generation=1, begun=True)
        trains = RankFacts(0, 0, 1, 10, Stage.TRAINING, 1, True, step=5, clean=True, scope=Scope.BETWEEN)
        self.facts = {r: replace(trains, rank=r, node=r) for r in (0, 1)}
        self.here = SICK.here
        self.stand_in = replace(PARKED, follows="yes")
        self.now = 0.0
        self.kept: dict[int, int] = {}
        self.why: list[str] = []

    def go(self, after: float = 0.0) -> Job:
        self.now += after
        following = frozenset("abc")
        outlook = replace(SICK, here=self.here, stand_ins={1: self.stand_in}, kept=self.kept, following=following)
        decision = advance(self.job, self.facts, self.now, outlook)
        assert advance(decision.job, self.facts, self.now, outlook).job == decision.job
        self.job = decision.job
        self.why += decision.why
        return self.job

    def set(self, rank: int, **changes: Any) -> None:
        self.facts[rank] = replace(self.facts[rank], **changes)

    def pausing(self) -> Driven:
        self.go()
        assert self.go(CONNECT_S).phase is Phase.PAUSING
        return self

    def at_fence(self, *ranks: int) -> None:
        for rank in ranks:
            self.set(rank, stage=Stage.PAUSED, generation=self.job.generation, local_steps=(5,))
        self.stand_in = replace(
            self.stand_in, generation=self.job.generation, step=5, clean=True, local_steps=(5,), follows="yes"
        )

    @property
    def group(self) -> str:
        assert self.job.switch is not None
        return group_of(self.job.switch, self.job.generation)


def test_the_new_group_is_connected_while_everybody_trains() -> None:
    it = Driven()
    assert it.go().phase is Phase.RUNNING
    name = it.group
    assert name
    it.set(0, joined=name)
    assert it.go(1.0).phase is Phase.RUNNING, "the stand-in is not in it yet"
    it.stand_in = replace(it.stand_in, joined=name)
    assert it.go().phase is Phase.PAUSING, "and who leaves is not asked"
    it.at_fence(0, 1)
    it.go()
    assert it.job.agreement is not None
    assert it.job.agreement.joined == name
    assert "connected already" in it.why[-1]


def test_without_the_new_group_there_is_a_swap_as_well() -> None:
    it = Driven().pausing()
    it.at_fence(0, 1)
    assert it.go().agreement is not None
    assert it.job.agreement is not None
    assert (it.job.agreement.joined, it.job.places[1]) == ("", C)


def test_a_process_that_came_later_is_in_no_group() -> None:
    copies = [Copy(r, 5, True, False, (5,), joined=name) for r, name in enumerate(("g", "g", ""))]
    outcome = agree(copies)
    assert isinstance(outcome, Agreement)
    assert outcome.joined == ""


def test_who_hears_of_the_swap_by_a_closed_connection_reports_no_fault() -> None:
    it = Driven().pausing()
    text = "RuntimeError: Connection closed by peer"
    it.set(1, fault=FaultReport("exception", 1, 1, step=5, text=text, retryable="communication", at=7.0))
    it.go()
    assert it.job.switch is not None, "the switch goes on"
    it.at_fence(0, 1)
    assert it.go().places[1] == C
    assert it.job.incident is not None
    assert it.job.incident.policy == "hot-switch"


def test_one_that_hangs_in_the_last_step_is_told_from_those_who_wait_for_it() -> None:
    it = Driven().pausing()
    assert it.job.soft, "all are to come at the end of their step"
    assert it.job.deadline is not None
    it.go(it.job.deadline - it.now)
    assert not it.job.soft, "nobody has come, so the step is interrupted"
    assert it.job.incarnations == (1, 1)
    it.at_fence(0)
    assert it.job.deadline is not None
    it.go(it.job.deadline - it.now)
    assert it.job.incarnations == (1, 2), "who does not come to the fence now hangs"


def cannot_follow() -> Driven:
    it = Driven().pausing()
    it.at_fence(0, 1)
    it.stand_in = replace(PARKED, follows="no")
    assert it.go().switch is not None, "what the old rank knows is not known to be kept elsewhere yet"
    return it


def test_nobody_is_released_who_alone_knows_something() -> None:
    it = cannot_follow()
    it.go(SETTLE_S)
    assert (it.job.switch, it.job.places) == (None, PLACES), "the switch is undone"
    assert "what only rank 1 can know is kept nowhere else" in it.why[-2]
    assert it.job.phase is Phase.FORMING, "and all go on"


def test_one_that_cannot_follow_takes_over_when_what_it_needs_is_kept() -> None:
    it = cannot_follow()
    it.kept = {1: 4}
    assert it.go(0.1).places == PLACES, "that is of the step before"
    it.kept = {1: 5}
    assert it.go(0.1).places[1] == C


def test_a_death_in_the_middle_of_a_swap_is_a_fault() -> None:
    it = Driven().pausing()
    it.set(0, stage=Stage.EXITED, exit_code=-9)
    it.go()
    assert it.job.switch is None
    assert it.job.incarnations == (2, 1)


def test_what_another_node_kept_is_waited_for_and_not_for_ever() -> None:
    """The sick node dies in the swap, and the stand-in that was there already takes its place at once."""
    it = Driven().pausing()
    it.at_fence(0)
    it.here = (A, C)
    it.set(1, stage=Stage.EXITED, exit_code=-9, fault=FaultReport("node", 1, 1, text="node 1 is gone", at=it.now))
    assert it.go().places[1] == C
    it.facts[1] = replace(PARKED, incarnation=it.job.incarnations[1])
    it.kept = {1: 5}
    assert it.go(0.1).phase is Phase.PAUSING, "its local state is on its way"
    it.set(1, local_steps=(1, 2))
    assert it.go(0.1).phase is Phase.PAUSING, "what it has is from a time when it had this place before"
    it.set(1, local_steps=(5,))
    assert it.go().phase is Phase.FORMING
    it.job = replace(it.job, phase=Phase.PAUSING, deadline=it.now + 1.0)
    it.set(1, local_steps=())
    assert it.go(2.0).phase is not Phase.PAUSING
