"""All start again while nodes are missing: with those who are there, where they are enough and the script can."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from onward.core.agreement import Agreement, Part
from onward.core.ends import NOT_MADE_FOR_FEWER
from onward.core.facts import FaultReport, RankFacts, Scope, Stage
from onward.core.job import NEEDS_BATCHES, UNKNOWN, Job, Limits, Phase, new_job
from onward.core.membership import Member, Outlook
from onward.core.policy import parse_policies
from onward.core.recovery import advance
from onward.core.succession import inherited
from onward.manager.orders import Mandate, draft, form, orders
from onward.manager.roll import Roll
from onward.wire.messages import AgentFacts

MEMBERS = A, B, C, D = tuple(Member(id=name, host=name) for name in "abcd")
E = Member(id="e", host="e")
AT_ONCE = "recover-in-place,elastic-training,dump"
WAITS = "recover-in-place,recover,elastic-training,dump"


def here(*members: Member) -> Outlook:
    return Outlook(here=members, following=frozenset(m.id for m in members))


def shrunk(policies: str = AT_ONCE, min_nodes: int = 2, **changes: Any) -> Job:
    """Of four nodes the last is missing, and the others train on."""
    made = new_job(4, parse_policies(policies), Limits(min_nodes=min_nodes, reschedule_s=30.0), (A, B, C, None))
    known: dict[str, Any] = {"phase": Phase.RUNNING, "generation": 5, "begun": True, "absent": (3,), "rigid": ""}
    return replace(made, library=True, **known | changes)


def of(job: Job, ranks: Iterable[int], stage: Stage, **changes: Any) -> dict[int, RankFacts]:
    known: dict[str, Any] = {"pid": 1, "generation": job.generation, "library": True, "elastic": True}
    return {r: replace(RankFacts(r, r, job.incarnations[r], stage=stage), **known | changes) for r in ranks}


def training(job: Job, ranks: Iterable[int] = (0, 1, 2), **changes: Any) -> dict[int, RankFacts]:
    known: dict[str, Any] = {"step": 9, "clean": True, "scope": Scope.STEP, "local_steps": (8, 9)}
    return of(job, ranks, **{"stage": Stage.TRAINING} | known | changes)


def all_die(job: Job, outlook: Outlook, now: float = 10.0, **changes: Any) -> Job:
    """All that are left of it at once: no copy of the state is."""
    dead = of(job, job.ranks, Stage.EXITED, exit_code=-9, **changes)
    again = advance(job, dead, now, outlook).job
    assert (again.phase, again.attempt) == (Phase.STARTING, 1)
    return again


def goes_through(job: Job, outlook: Outlook, elastic: bool = True, loadable: tuple[int, ...] = (7,)) -> Job:
    """From its start until it has been decided where its first step begins."""
    here = [r for r in job.ranks if job.places[r] is not None]
    formed = advance(job, of(job, here, Stage.SETUP, elastic=False), 11.0, outlook).job
    assert formed.phase is Phase.FORMING
    runs = advance(formed, of(formed, job.ranks, Stage.FORMED, elastic=False), 11.1, outlook).job
    assert runs.phase is Phase.RUNNING
    return advance(runs, of(runs, job.ranks, Stage.READY, loadable=loadable, elastic=elastic), 11.2, outlook).job


@pytest.mark.parametrize("policies", [AT_ONCE, WAITS])
def test_those_who_are_there_begin_at_once_and_nobody_is_waited_for_twice(policies: str) -> None:
    again = all_die(shrunk(policies), here(A, B, C))
    assert (again.absent, again.waiting, again.ranks) == ((3,), "", (0, 1, 2))
    assert again.incident is not None
    assert again.incident.why[-1].endswith("restarting the 3 ranks that are here")
    loads = goes_through(again, here(A, B, C))
    assert (loads.phase, loads.absent, loads.begun) == (Phase.FORMING, (3,), True)
    assert loads.agreement is not None
    assert (loads.agreement.step, loads.agreement.parts) == (7, dict.fromkeys((0, 1, 2), Part.LOAD))


def test_the_first_group_is_told_who_is_in_it() -> None:
    again = all_die(shrunk(), here(A, B, C))
    setup = of(again, again.ranks, Stage.SETUP)
    formed = advance(again, setup, 11.0, here(A, B, C)).job
    mandate = Mandate(version=1, seat="a", base=(), granted=True, final=False)
    told = draft(mandate, formed, setup)
    assert told.common.members == 3
    assert [form(told, r, setup).members for r in (0, 1, 2)] == [[0, 1, 2]] * 3


def test_a_dump_restarts_with_those_who_are_there() -> None:
    job = shrunk("elastic-training,dump")
    broken = FaultReport("exception", 1, 1, step=9, text="reset", retryable="communication", at=10.0)
    facts = training(job)
    paused = advance(job, facts | {1: replace(facts[1], fault=broken)}, 10.0, here(A, B, C)).job
    for now in (10.1, 12.0):  # looking for the cause; then there is none that could be cured in place
        at_fence = training(paused, stage=Stage.PAUSED, generation=paused.generation)
        paused = advance(paused, at_fence, now, here(A, B, C)).job
    saving = advance(paused, training(paused, stage=Stage.PAUSED), 12.1, here(A, B, C)).job
    assert saving.phase is Phase.SAVING
    again = advance(saving, training(saving, stage=Stage.PAUSED, disk=(9,)), 13.0, here(A, B, C)).job
    assert (again.phase, again.attempt, again.absent) == (Phase.STARTING, 1, (3,))


@pytest.mark.parametrize("changes", [{}, {"absent": (), "arriving": (3,), "phase": Phase.PAUSING}])
def test_who_comes_in_place_of_a_lost_one_is_told_what_another_exchanged_in_its_set_up(changes: dict[str, Any]) -> None:
    """Without `recover` nobody keeps that for others."""
    a, e = replace(A, peer="10.0.0.1|7"), replace(E, peer="10.0.0.5|7")
    job = shrunk(places=(a, B, C, e), **changes)
    mandate = Mandate(version=1, seat="a", base=(), granted=True, final=False)
    drafted = draft(mandate, job, {})
    assert orders(drafted, "e", {}, Roll(4)).log_at == {3: a.peer}
    assert orders(drafted, "a", {}, Roll(4)).log_at == {}


@pytest.mark.parametrize("absent", [(), (3,)])
def test_what_was_kept_of_an_absent_rank_is_no_part_of_a_dump(absent: tuple[int, ...]) -> None:
    """It is of the step at which its node was lost, and nothing was saved."""
    agreed = Agreement(9, dict.fromkeys((0, 1, 2), Part.KEEP), (0, 1, 2), "")
    saving = shrunk(WAITS, phase=Phase.SAVING, agreement=agreed, ending="dump", absent=absent)
    roll = Roll(4)
    roll.hear(AgentFacts(agent=A, version=1, term=1, orders_version=1, ranks=[], kept={3: [1, 2]}), 10.0)
    mandate = Mandate(version=1, seat="a", base=(), granted=True, final=False)
    told = orders(draft(mandate, saving, {}), "a", {}, roll)
    assert told.save is not None
    assert told.save.adopted == ([] if absent else [3])


def test_what_is_in_memory_is_kept_while_a_node_is_missing_and_who_prepares_to_join_joins_later() -> None:
    """That one has nothing in its memory, and with it all would begin from an older checkpoint, or from nothing."""
    job = shrunk("retry,recover-in-place,elastic-training", places=(A, B, C, E))
    broken = FaultReport("untold", 1, 1, step=9, text="nobody can tell", at=10.0)
    facts = training(job)
    paused = advance(job, facts | {1: replace(facts[1], fault=broken)}, 10.0, here(A, B, C, E)).job
    assert paused.ending == "reload"
    saving = advance(paused, training(paused, stage=Stage.PAUSED), 10.1, here(A, B, C, E)).job
    kept = training(saving, stage=Stage.PAUSED, memory=(9,), kept=(9,))
    again = advance(saving, kept, 10.2, here(A, B, C, E)).job
    assert (again.phase, again.attempt, again.absent) == (Phase.STARTING, 1, (3,))
    assert goes_through(again, here(A, B, C, E), loadable=(9,)).agreement is not None


def test_who_only_prepared_to_join_begins_with_the_others() -> None:
    again = all_die(shrunk(places=(A, B, C, E)), here(A, B, C, E))
    assert (again.absent, again.ranks) == ((), (0, 1, 2, 3))


def test_whoever_comes_during_the_start_does_not_hold_it_up() -> None:
    again = all_die(shrunk(), here(A, B, C))
    came = advance(again, of(again, again.ranks, Stage.SETUP), 11.0, here(A, B, C, E)).job
    assert (came.phase, came.places, came.absent) == (Phase.FORMING, (A, B, C, None), (3,))
    runs = advance(came, of(came, came.ranks, Stage.FORMED), 11.1, here(A, B, C, E)).job
    runs = advance(runs, of(runs, came.ranks, Stage.FORMED), 11.2, here(A, B, C, E)).job
    assert (runs.places, runs.absent) == ((A, B, C, E), (3,)), "it gets ready, and joins at the end of a step"


def lose_third(job: Job, outlook: Outlook) -> Job:
    """A further node is lost as all start again."""
    again = all_die(job, outlook)
    lost = FaultReport("node", 2, again.incarnations[2], text="it is gone", at=10.5)
    return advance(again, of(again, (2,), Stage.STARTING, fault=lost), 10.5, outlook).job


@pytest.mark.parametrize("policies", [AT_ONCE, WAITS])
def test_a_node_that_is_lost_during_the_start_is_waited_for_as_in_a_shrink(policies: str) -> None:
    two = lose_third(shrunk(policies), here(A, B))
    assert (two.phase, two.attempt, two.places) == (Phase.STARTING, 2, (A, B, None, None))
    if policies == AT_ONCE:
        assert (two.absent, two.waiting) == ((2, 3), "")
        return
    assert (two.absent, two.waiting) == ((3,), "a node to take the place of node 2")
    assert two.deadline == 10.5 + 30.0
    late = advance(two, {}, two.deadline, here(A, B)).job
    assert (late.phase, late.absent, late.waiting, late.deadline) == (Phase.STARTING, (2, 3), "", None)


def test_whoever_comes_while_a_node_is_waited_for_begins_with_the_others() -> None:
    two = lose_third(shrunk(WAITS), here(A, B))
    came = advance(two, {}, 12.0, here(A, B, D, E)).job
    assert (came.places, came.absent, came.waiting) == ((A, B, D, E), (), "")


def test_below_its_least_nodes_a_start_waits_with_a_reason_and_then_fails_with_it() -> None:
    two = lose_third(shrunk(min_nodes=3), here(A, B))
    lacking = "the job needs 3 nodes, and only 2 are here"
    assert (two.absent, two.waiting) == ((), f"a node to take the place of node 2, 3; {lacking}")
    assert two.deadline is not None
    assert advance(two, {}, two.deadline - 0.1, here(A, B)).job.phase is Phase.STARTING
    late = advance(two, {}, two.deadline, here(A, B)).job
    assert late.phase is Phase.FAILED
    assert late.reason == f"no node took the place of node 2, 3 within 600 s; {lacking}"


def test_when_enough_have_come_the_others_are_not_waited_for() -> None:
    two = lose_third(shrunk(min_nodes=3), here(A, B))
    three = advance(two, {}, 12.0, here(A, B, E)).job
    assert (three.phase, three.places, three.absent) == (Phase.STARTING, (A, B, E, None), (3,))


@pytest.mark.parametrize("rigid", [NEEDS_BATCHES, UNKNOWN])
def test_a_script_that_cannot_shrink_waits_for_all_and_says_why(rigid: str) -> None:
    """It has just lost its first node, as all started again."""
    job = shrunk(places=(A, B, C, D), absent=(), rigid=rigid)
    three = lose_third(job, here(A, B, D))
    assert (three.absent, three.waiting) == ((), f"a node to take the place of node 2; {rigid}")
    assert three.deadline is not None
    late = advance(three, {}, three.deadline, here(A, B, D)).job
    assert (late.phase, late.reason) == (Phase.FAILED, f"no node took the place of node 2 within 600 s; {rigid}")


@pytest.mark.parametrize("elastic", [True, False])
def test_whether_the_script_can_is_seen_at_its_first_step(elastic: bool) -> None:
    fresh = replace(new_job(4, parse_policies(AT_ONCE), Limits(), MEMBERS), generation=1)
    assert fresh.rigid == UNKNOWN
    assert goes_through(fresh, here(*MEMBERS), elastic, loadable=()).rigid == ("" if elastic else NEEDS_BATCHES)


def test_a_script_that_does_not_come_to_its_first_step_with_fewer_gets_all_nodes() -> None:
    """It raises the same error on every rank: with all nodes there that would be its own, and the end."""
    again = all_die(shrunk(), here(A, B, C))
    error = [FaultReport("exception", r, again.incarnations[r], text="ValueError: no rank 3", at=1.0) for r in range(3)]
    setup = of(again, again.ranks, Stage.SETUP)
    waits = advance(again, {r: replace(f, fault=error[r]) for r, f in setup.items()}, 11.0, here(A, B, C)).job
    assert (waits.phase, waits.attempt, waits.absent) == (Phase.STARTING, 2, ())
    assert waits.waiting == f"a node to take the place of node 3; {NOT_MADE_FOR_FEWER}"
    came = advance(waits, {}, 12.0, here(A, B, C, D)).job
    assert goes_through(came, here(A, B, C, D)).rigid == "", "all are there, and it can go on with fewer"


@pytest.mark.parametrize("shown_by", ["its end", "a connection that broke"])
def test_a_rank_that_is_killed_in_a_short_start_says_nothing_of_the_script(shown_by: str) -> None:
    """Unless that is so each time: then something may be wrong with it, such as what it exchanges in its set-up."""
    job = all_die(shrunk(), here(A, B, C))
    for attempt in (2, 3, 4):
        facts = of(job, job.ranks, Stage.SETUP)
        if shown_by == "its end":
            facts |= of(job, (2,), Stage.EXITED, exit_code=-11)
        else:
            fault = FaultReport("exception", 0, job.incarnations[0], text="reset", retryable="communication")
            facts[0] = replace(facts[0], fault=fault)
        job = advance(job, facts, 10.0 + attempt, here(A, B, C)).job
        assert (job.attempt, job.absent) == (attempt, (3,) if attempt < 4 else ())
    assert job.waiting.endswith(NOT_MADE_FOR_FEWER)


def test_starts_with_fewer_are_counted_in_the_budget() -> None:
    again = all_die(shrunk(limits=Limits(max_restarts=1)), here(A, B, C))
    over = advance(again, of(again, again.ranks, Stage.EXITED, exit_code=1), 11.0, here(A, B, C)).job
    assert (over.phase, "the limit of 1 restart is used up" in over.reason) == (Phase.FAILED, True)


def test_a_script_that_turns_out_not_to_be_made_for_fewer_ranks_gets_all_nodes() -> None:
    again = all_die(shrunk(), here(A, B, C))
    waits = goes_through(again, here(A, B, C), elastic=False)
    assert (waits.phase, waits.attempt, waits.absent, waits.rigid) == (Phase.STARTING, 2, (), NEEDS_BATCHES)


@pytest.mark.parametrize("policies", [AT_ONCE, WAITS])
def test_a_new_manager_goes_on_with_the_start_as_it_finds_it(policies: str) -> None:
    again = all_die(shrunk(policies), here(A, B, C))
    new = inherited(again, 2, 100.0)
    assert (new.phase, new.absent, new.deadline) == (Phase.STARTING, (3,), None)
    assert advance(new, of(new, new.ranks, Stage.SETUP), 101.0, here(A, B, C)).job.phase is Phase.FORMING


def test_a_new_manager_waits_for_nodes_no_longer_than_the_old_one() -> None:
    two = lose_third(shrunk(WAITS), here(A, B))
    assert inherited(two, 2, 100.0).deadline == 100.0 + 30.0


def first_start() -> Job:
    """Three of four have come, and the fourth was waited for before the job began."""
    job = replace(shrunk(WAITS), phase=Phase.STARTING, generation=0, begun=False, absent=(), rigid=UNKNOWN)
    return replace(job, library=False)


def test_a_first_start_goes_on_when_all_who_have_come_are_ready() -> None:
    job = first_start()
    some = advance(job, of(job, (0, 1), Stage.SETUP), 10.0, here(A, B, C)).job
    assert (some.phase, some.absent) == (Phase.STARTING, ())
    begins = advance(job, of(job, (0, 1, 2), Stage.SETUP), 10.0, here(A, B, C))
    assert (begins.job.phase, begins.job.absent) == (Phase.FORMING, (3,))
    assert "node 3 did not come; starting with 3 of 4 ranks and the same global batch" in begins.why


@pytest.mark.parametrize("changes", [{"library": False}, {"stage": Stage.STARTING}])
def test_a_first_start_of_a_plain_script_waits_for_all(changes: dict[str, Any]) -> None:
    """It meets the others by itself, and would wait for them in there."""
    job = first_start()
    waits = advance(job, of(job, (0, 1, 2), **{"stage": Stage.SETUP} | changes), 10.0, here(A, B, C)).job
    assert (waits.phase, waits.absent, waits.deadline) == (Phase.STARTING, (), 610.0)


def test_a_first_start_of_a_script_that_cannot_goes_back_to_waiting_for_all() -> None:
    job = first_start()
    waits = goes_through(job, here(A, B, C), elastic=False)
    assert (waits.phase, waits.attempt, waits.absent) == (Phase.STARTING, 1, ())
    assert waits.waiting == f"a node to take the place of node 3; {NEEDS_BATCHES}"
    came = advance(waits, {}, 12.0, here(A, B, C, D)).job
    begun = goes_through(came, here(A, B, C, D), elastic=False, loadable=())
    assert (begun.begun, begun.attempt) == (True, 1)
