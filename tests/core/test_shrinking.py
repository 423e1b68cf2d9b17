"""Going on with fewer ranks at once, with one who comes as soon as it can be, and without what nobody has kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from onward.core.agreement import Part
from onward.core.facts import FaultReport, RankFacts, Scope, Stage
from onward.core.job import Job, Limits, Phase, new_job
from onward.core.membership import Member, Outlook
from onward.core.policy import parse_policies
from onward.core.recovery import advance
from onward.manager.orders import Mandate, draft, form

A, B, C = (Member(id=name, host=name) for name in "abc")
BOTH = "recover,elastic-training"


def job(policies: str, min_nodes: int) -> Job:
    made = new_job(2, parse_policies(policies), Limits(min_nodes=min_nodes), (A, B))
    return replace(made, phase=Phase.RUNNING, generation=1, library=True, begun=True)


def trains(rank: int, elastic: bool = True, **changes: object) -> RankFacts:
    f = RankFacts(rank, rank, 1, pid=1, stage=Stage.TRAINING, generation=1, library=True, step=3, clean=True)
    known: dict[str, Any] = {"scope": Scope.STEP, "local_steps": (2, 3), "elastic": elastic}
    return replace(f, **known | changes)


def here(*members: Member) -> Outlook:
    return Outlook(here=members, following=frozenset(m.id for m in members))


def paused(policies: str, min_nodes: int, *others: Member) -> Job:
    """Node 1 is lost; `others` are there besides node 0."""
    lost = FaultReport("node", 1, 1, text="it is gone", at=10.0)
    found = advance(job(policies, min_nodes), {0: trains(0), 1: trains(1, fault=lost)}, 10.0, here(A, *others)).job
    assert found.phase is Phase.PAUSING
    return found


def at_fence(of: Job, elastic: bool = True, **changes: object) -> dict[int, RankFacts]:
    """Rank 0 stands there, and a new process of rank 1 that has nothing."""
    there = trains(0, elastic, stage=Stage.PAUSED, generation=of.generation, **changes)
    new = RankFacts(1, 1, of.incarnations[1], 2, Stage.PARKED, 0, True, elastic=elastic)
    return {0: there, 1: new}


def test_one_who_stands_by_is_not_waited_for_and_joins_later() -> None:
    less = paused("elastic-training", 1, C)
    assert less.places == (A, None), "to get ready takes time"
    went_on = advance(less, {0: at_fence(less)[0]}, 10.1, here(A, C)).job
    assert (went_on.phase, went_on.absent) == (Phase.FORMING, (1,))
    formed = {0: trains(0, stage=Stage.FORMED, generation=went_on.generation)}
    running = advance(went_on, formed, 10.2, here(A, C)).job
    assert running.phase is Phase.RUNNING
    assert advance(running, formed, 10.3, here(A, C)).job.places == (A, C)


def test_with_too_few_to_go_on_whoever_comes_takes_the_place_and_nothing_is_lost() -> None:
    few = paused("elastic-training", 2)
    waits = advance(few, {0: at_fence(few)[0]}, 10.1, here(A)).job
    assert waits.waiting == "at least 2 nodes; 1 are left"
    came = advance(waits, {0: at_fence(few)[0]}, 11.0, here(A, C)).job
    assert came.places == (A, C)
    after = advance(came, at_fence(came), 12.0, here(A, C)).job
    assert (after.phase, after.attempt, after.joining) == (Phase.FORMING, 0, (1,))
    assert after.agreement is not None
    assert (after.agreement.step, after.agreement.parts[1]) == (3, Part.RECEIVE)


def test_a_node_that_was_given_up_is_taken_again_where_there_are_too_few_without_it() -> None:
    """Its process had died, and it may not have another in its place; the node answers all the time."""
    before = job("elastic-training", 2)
    facts = {0: trains(0), 1: trains(1, stage=Stage.EXITED, exit_code=-9)}
    again = advance(before, facts, 10.0, here(A, B)).job
    assert (again.phase, again.places, again.given_up) == (Phase.PAUSING, (A, B), ("b",))
    assert again.incarnations == (1, 2)


@pytest.mark.parametrize("elastic", [True, False])
def test_a_dump_does_without_what_only_the_lost_rank_knew(elastic: bool) -> None:
    """Nobody comes, and there are too few; where the script needs that, too, no copy is complete."""
    few = paused("elastic-training,dump", 2)
    there = {0: at_fence(few, elastic)[0]}
    waits = advance(few, there, 10.1, here(A)).job
    if not elastic:
        assert (waits.phase, waits.attempt) == (Phase.STARTING, 1)
        return
    late = advance(waits, there, 10.1 + few.limits.quorum_s, here(A)).job
    assert (late.phase, late.attempt, late.absent) == (Phase.SAVING, 0, (1,))


@pytest.mark.parametrize(("policies", "elastic"), [("recover", True), (BOTH, False)])
def test_what_only_the_lost_rank_knew_is_needed_where_the_script_deals_no_micro_batches(
    policies: str, elastic: bool
) -> None:
    came = paused(policies, 1, C)
    assert came.places == (A, C)
    assert advance(came, at_fence(came, elastic), 12.0, here(A, C)).job.attempt == 1


@pytest.mark.parametrize("between", [0, 1])
def test_who_begins_anew_runs_what_the_others_still_have_to_run_after_the_last_step(between: int) -> None:
    """Both, the one that took the place and the one that had kept its local state, were lost."""
    came = paused(BOTH, 1, C)
    facts = at_fence(came, between=between, scope=Scope.OUTSIDE if between else Scope.STEP)
    after = advance(came, facts, 12.0, here(A, C)).job
    assert (after.phase, after.attempt) == (Phase.FORMING, 0)
    mandate = Mandate(version=1, seat="a", base=(), granted=True, final=False)
    told = form(draft(mandate, after, facts), 1, facts)
    assert (told.fresh, told.past) == (True, not between)
