"""A rank dies on a node that answers, and may not be restarted in its place: its node is given up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onward.core.facts import RankFacts, Scope, Stage
from onward.core.job import Job, Limits, Phase, new_job
from onward.core.membership import Electorate, Member, Outlook
from onward.core.moving import why_left
from onward.core.policy import parse_policies
from onward.core.recovery import advance

A, B, C = (Member(id=name, host=name, wanted=at) for at, name in ((0, "a"), (1, "b"), (-1, "c")))
ALONE = "recover"


def job(policies: str = ALONE, places: tuple[Member, ...] = (A, B)) -> Job:
    made = new_job(2 * len(places), parse_policies(policies), Limits(), places)
    voters = (Electorate(places, "a", 1),)
    return replace(made, voters=voters, phase=Phase.RUNNING, generation=1, library=True, begun=True)


def ranks(count: int = 4, **changes: object) -> dict[int, RankFacts]:
    f = RankFacts(0, 0, 1, pid=1, stage=Stage.TRAINING, generation=1, library=True, step=3, clean=True)
    f = replace(f, scope=Scope.STEP, local_steps=(2, 3), elastic=True, **changes)  # type: ignore[arg-type]
    return {r: replace(f, rank=r, node=r // 2) for r in range(count)}


def killed(*dead: int) -> dict[int, RankFacts]:
    found = ranks()
    return found | {r: replace(found[r], stage=Stage.EXITED, exit_code=-9) for r in dead}


def here(*members: Member) -> Outlook:
    ids = frozenset(m.id for m in members)
    return Outlook(following=ids, seat="a", here=members)


def at_fence(of: Job, *ranks_there: int) -> dict[int, RankFacts]:
    every = ranks(stage=Stage.PAUSED, generation=of.generation)
    return {r: every[r] for r in ranks_there}


def test_the_node_of_a_dead_rank_is_given_up_and_one_that_stands_by_takes_its_place() -> None:
    after = advance(job(), killed(3), 10.0, here(A, B, C)).job
    assert (after.phase, after.places, after.given_up) == (Phase.PAUSING, (A, C), ("b",))
    assert after.incarnations == (1, 1, 2, 2), "the others keep their processes"
    assert (after.moved, after.restarts_used, after.attempt) == (2, 0, 0), "it costs no restart"
    assert after.incident is not None
    assert after.incident.policy == "recover"
    first, second = after.incident.why
    assert first.startswith("rank 3 killed (SIGKILL); node 1 is given up; another node takes over ranks 2, 3")
    assert second == "c (127.0.0.1) takes the place of node 1"


def test_in_a_pod_it_waits_for_another_which_the_operator_is_told_to_make() -> None:
    a, b = replace(A, pod="uid-a"), replace(B, pod="uid-b")
    before = job(places=(a, b))
    waits = advance(before, killed(3), 10.0, here(a, b)).job
    assert (waits.phase, waits.places) == (Phase.PAUSING, (a, None))
    assert waits.waiting == "a node to take the place of node 1"
    assert "rank 3 killed (SIGKILL)" in why_left(waits, b)
    assert why_left(waits, a) == ""
    still = advance(waits, at_fence(waits, 0, 1), 11.0, here(a, b)).job
    assert (still.places, still.deadline) == ((a, None), 10.0 + before.limits.reschedule_s)
    late = advance(still, at_fence(waits, 0, 1), 10.0 + before.limits.reschedule_s, here(a, b)).job
    assert (late.phase, late.places) == (Phase.PAUSING, (a, b)), "nobody has come: better there than from the start"


def test_where_nobody_need_ever_come_the_node_begins_again_at_once() -> None:
    after = advance(job(), killed(3), 10.0, here(A, B)).job
    assert (after.places, after.incarnations, after.attempt) == ((A, B), (1, 1, 2, 2), 0)
    assert after.incident is not None
    assert after.incident.why[-1] == "b (127.0.0.1) takes the place of node 1 again, as nobody else has come"


def test_when_all_is_well_it_may_take_the_next_place_that_falls_vacant() -> None:
    moved = advance(job(), killed(3), 10.0, here(A, B, C)).job
    parked = ranks(stage=Stage.PARKED, generation=0, step=-1, incarnation=2)
    meet = at_fence(moved, 0, 1) | {r: parked[r] for r in (2, 3)}
    formed = advance(moved, meet, 11.0, here(A, B, C)).job
    assert formed.phase is Phase.FORMING
    facts = {r: replace(f, stage=Stage.FORMED, generation=formed.generation) for r, f in meet.items()}
    running = advance(formed, facts, 12.0, here(A, B, C)).job
    done = {r: replace(f, stage=Stage.TRAINING, resumed=True) for r, f in facts.items()}
    closed = advance(running, done, 13.0, here(A, B, C)).job
    assert (closed.incident, closed.given_up) == (None, ())


def test_with_recover_in_place_it_stays() -> None:
    after = advance(job("recover-in-place,recover"), killed(3), 10.0, here(A, B, C)).job
    assert (after.places, after.given_up, after.incarnations) == ((A, B), (), (1, 1, 1, 2))


def test_when_a_process_does_not_come_up_in_place_its_node_is_given_up_once() -> None:
    before = job("recover-in-place,recover,dump")
    in_place = advance(before, killed(3), 10.0, here(A, B, C)).job
    meet = at_fence(in_place, 0, 1, 2)
    patience = advance(in_place, meet, 10.0 + before.limits.pause_s, here(A, B, C)).job
    late = 10.0 + before.limits.mend_s
    moved = advance(patience, meet, late, here(A, B, C)).job
    assert (moved.places, moved.incarnations, moved.ending) == ((A, C), (1, 1, 2, 3), "")
    assert moved.incident is not None
    assert moved.incident.policy == "recover"
    assert "restarting it in place has failed, so node 1 is given up" in moved.incident.why[-2]
    meet = at_fence(moved, 0, 1)
    patience = advance(moved, meet, late + before.limits.pause_s, here(A, B, C)).job
    again = advance(patience, meet, late + before.limits.mend_s, here(A, B, C)).job
    assert (again.places, again.ending) == ((A, C), "dump"), "there neither: the next policy"


def test_when_a_process_dies_again_and_again_in_place_its_node_is_given_up_once() -> None:
    now, outlook = job("recover-in-place,recover,dump"), here(A, B, C)
    facts = killed(3)
    for count in range(1, 4):
        now = advance(now, facts, 10.0 * count, outlook).job
        assert now.places == (A, B), f"death {count}"
        dead = replace(killed(3)[3], incarnation=now.incarnations[3])
        facts = at_fence(now, 0, 1, 2) | {3: dead}
    now = advance(now, facts, 50.0, outlook).job
    assert (now.places, now.ending) == ((A, C), "")
    facts = at_fence(now, 0, 1) | {r: replace(killed(2, 3)[r], incarnation=now.incarnations[r]) for r in (2, 3)}
    assert advance(now, facts, 60.0, outlook).job.ending == "dump", "there too: the next policy"


def test_with_neither_all_start_again() -> None:
    after = advance(job("exit"), killed(3), 10.0, here(A, B, C)).job
    assert (after.phase, after.places, after.attempt) == (Phase.STARTING, (A, B), 1)


@pytest.mark.parametrize(("policies", "phase"), [("recover", Phase.STARTING), ("recover,dump", Phase.PAUSING)])
def test_a_node_is_not_given_up_with_the_last_copy_of_the_state(policies: str, phase: Phase) -> None:
    """A rank has died on each: those beside them hold the state, and `dump` may keep it."""
    after = advance(job(policies), killed(1, 3), 10.0, here(A, B, C)).job
    assert (after.phase, after.places) == (phase, (A, B))
    assert after.ending == ("dump" if "dump" in policies else "")
    assert after.incident is not None
    assert "nodes 0, 1 would be given up, and nobody else holds the state" in after.incident.why[-1]


def test_who_is_still_to_be_given_the_state_does_not_count_as_one_that_holds_it() -> None:
    waits = advance(job("recover,dump"), killed(3), 10.0, here(A, B, C)).job
    coming = ranks(stage=Stage.STARTING, step=-1, incarnation=2)
    facts = killed(0) | {r: coming[r] for r in (2, 3)}
    after = advance(waits, facts, 11.0, here(A, B, C)).job
    assert (after.ending, after.places) == ("dump", (A, C)), "rank 1 has the only copy"


def test_elastic_training_alone_goes_on_without_the_node_and_takes_it_back() -> None:
    before = job("elastic-training")
    paused = advance(before, killed(3), 10.0, here(A, B)).job
    assert (paused.phase, paused.places, paused.given_up) == (Phase.PAUSING, (A, None), ("b",))
    assert why_left(paused, B) == "", "nobody is waited for"
    less = advance(paused, at_fence(paused, 0, 1), 11.0, here(A, B)).job
    assert (less.absent, less.given_up) == ((2, 3), ())
    formed = {r: replace(f, stage=Stage.FORMED, generation=less.generation) for r, f in at_fence(less, 0, 1).items()}
    running = advance(less, formed, 12.0, here(A, B)).job
    assert running.phase is Phase.RUNNING
    assert advance(running, formed, 12.0, here(A, B)).job.places == (A, B)
