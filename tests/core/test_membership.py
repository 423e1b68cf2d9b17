"""Places are held once, and two halves of a cut network never both have a majority."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from onward.core.facts import FaultReport, RankFacts, Scope, Stage
from onward.core.job import Job, Limits, Phase, new_job
from onward.core.membership import Electorate, Member, Outlook, fill, nobody_left, vote
from onward.core.policy import parse_policies
from onward.core.recovery import advance
from onward.core.succession import inherited, overtaken

A, B, C, D = (Member(id=name, host=name) for name in "abcd")


def following(*members: Member, gone: tuple[Member, ...] = (), seat: str = "a", lacking_s: float = 0.0) -> Outlook:
    ids = frozenset(m.id for m in members)
    return Outlook(following=ids, gone=frozenset(m.id for m in gone), seat=seat, lacking_s=lacking_s, here=members)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_two_halves_never_both_have_a_majority(n: int) -> None:
    members = (A, B, C, D)[:n]
    e = Electorate(members, seat="b")
    for size in range(n + 1):
        for half in combinations(members, size):
            rest = tuple(m for m in members if m not in half)
            sides = [vote([e], following(*half)).enough, vote([e], following(*rest)).enough]
            assert sum(sides) == 1, "one of them goes on, and only one"


def test_the_casting_vote_stays_with_the_agent_wherever_the_manager_is() -> None:
    e = Electorate((A, B), seat="a")
    assert vote([e], following(A, seat="b")).enough
    verdict = vote([e], following(B, seat="b"))
    assert not verdict.enough
    assert verdict.why == "NoQuorum: 1 of 3 votes; no word from a (127.0.0.1)"


def test_who_is_known_to_be_gone_is_not_counted_but_somebody_must_be_left() -> None:
    e = Electorate((A, B), seat="a")
    assert vote([e], following(B, gone=(A,))).enough
    assert not vote([e], following(gone=(A, B))).enough
    assert nobody_left([Electorate((B, C)), e], {"a", "b"}), "there will never be a majority"
    assert not nobody_left([Electorate((B, C)), e], {"a", "c"})


def test_each_electorate_has_a_say() -> None:
    both = [Electorate((A, B, C)), Electorate((A, C, D))]
    assert vote(both, following(A, C)).enough
    assert not vote(both, following(A, B)).enough, "those who are to take over do not know yet"


def test_a_place_is_given_to_one_that_has_none() -> None:
    assert fill((A, None), (A, B)) == (A, B)
    assert fill((A, None), (A,)) == (A, None)
    standby = replace(D, standby=True)
    assert fill((None, None), (standby, replace(B, wanted=1)), starting=True) == (None, replace(B, wanted=1))


# ---------------------------------------------------------------------------------------------------- in recovery


def job(**changes: object) -> Job:
    made = new_job(2, parse_policies("retry,recover-in-place,recover"), Limits(), (A, B))
    voters = (Electorate((A, B), "a", 1),)
    return replace(made, voters=voters, phase=Phase.RUNNING, generation=1, library=True, begun=True, **changes)  # type: ignore[arg-type]


def ranks(**changes: object) -> dict[int, RankFacts]:
    f = RankFacts(0, 0, 1, pid=1, stage=Stage.TRAINING, generation=1, library=True, step=3, clean=True)
    f = replace(f, scope=Scope.STEP, local_steps=(2, 3), **changes)  # type: ignore[arg-type]
    return {0: f, 1: replace(f, rank=1, node=1)}


def test_without_a_majority_nothing_is_decided() -> None:
    dead = ranks(stage=Stage.EXITED, exit_code=-9)
    before = job()
    assert advance(before, dead, 10.0, following(B, seat="b")).job == before
    waiting = advance(before, dead, 10.0, following(B, seat="b", lacking_s=5.0)).job
    assert waiting == replace(before, waiting="NoQuorum: 1 of 3 votes; no word from a (127.0.0.1)")
    assert advance(waiting, dead, 10.0, following(A, B)).job.attempt == 1, "goes on when they are back"


def test_waiting_for_a_majority_ends() -> None:
    limits = Limits()
    failed = advance(job(), ranks(), 10.0, following(B, lacking_s=limits.quorum_s)).job
    assert failed.phase is Phase.FAILED
    assert failed.reason.startswith("NoQuorum")


def test_from_forming_to_running_the_old_and_the_new_members_decide() -> None:
    paused = ranks(stage=Stage.PAUSED, generation=2)
    moved = replace(job(), phase=Phase.PAUSING, generation=2, places=(A, C))
    forming = advance(moved, paused, 10.0, following(A)).job
    assert forming.phase is Phase.FORMING
    assert [e.members for e in forming.voters] == [(A, B), (A, C)]
    formed = ranks(stage=Stage.FORMED, generation=2)
    assert advance(forming, formed, 10.0, following(B, C)).job == forming, "of the new ones only the lesser half"
    running = advance(forming, formed, 10.0, following(A, C)).job
    assert running.phase is Phase.RUNNING
    assert [e.members for e in running.voters] == [(A, C)]


def test_what_another_manager_had_formed_may_have_run() -> None:
    first, other = Electorate((A, B), "a", 1), Electorate((A, C), "a", 1)
    moved = replace(job(), term=2, phase=Phase.PAUSING, generation=4, places=(A, D), voters=(first, other))
    paused = ranks(stage=Stage.PAUSED, generation=4)
    by_another = advance(moved, paused, 10.0, following(A, B, C, D)).job
    assert [e.members for e in by_another.voters] == [(A, B), (A, C), (A, D)]
    by_itself = advance(replace(moved, term=1), paused, 10.0, following(A, B, C, D)).job
    assert [e.members for e in by_itself.voters] == [(A, B), (A, D)], "it would know, had it run"


def test_a_new_manager_uses_no_number_that_the_last_may_have_used() -> None:
    taken = inherited(job(), 2, 10.0)
    assert (taken.term, taken.generation, taken.phase) == (2, 1, Phase.RUNNING), "nobody is disturbed"
    fault = ranks(stage=Stage.EXITED, exit_code=-9)
    fault[1] = ranks()[1]
    assert advance(taken, fault, 11.0, following(A, B)).job.generation == 3
    paused = inherited(replace(job(), phase=Phase.PAUSING, generation=2), 2, 10.0)
    assert (paused.generation, paused.phase) == (4, Phase.PAUSING), "who stands at the fence does so once more"


def test_ranks_that_follow_an_unknown_generation_are_joined_at_the_fence() -> None:
    there = overtaken(job(), 5, [1], ranks(), 10.0)
    assert (there.phase, there.generation) == (Phase.PAUSING, 6)
    assert overtaken(there, 6, [1], ranks(), 10.0) == there


def test_a_vacant_place_in_a_start_is_not_waited_for_by_starting_the_others_again() -> None:
    start = replace(job(), phase=Phase.STARTING, places=(A, None), incarnations=(2, 2), begun=False)
    here = {0: replace(ranks()[0], stage=Stage.SETUP, incarnation=2)}
    waiting = advance(start, here, 10.0, following(A)).job
    assert waiting.deadline == 10.0 + Limits().mend_s
    failed = advance(waiting, here, waiting.deadline, following(A)).job
    assert failed.phase is Phase.FAILED
    assert failed.reason == "no node took the place of node 1 within 600 s"
    assert failed.restarts_used == start.restarts_used


@pytest.mark.parametrize(("policies", "waits"), [("recover,elastic-training", True), ("elastic-training", False)])
def test_without_recover_the_others_go_on_at_once_when_a_node_is_lost(policies: str, waits: bool) -> None:
    before = job(policies=parse_policies(policies))
    lost = FaultReport("node", 1, before.incarnations[1], text="it is gone", at=10.0)
    facts = {r: replace(f, elastic=True) for r, f in ranks().items()}
    told = {0: facts[0], 1: replace(facts[1], fault=lost)}
    outlook = following(A, gone=(B,))
    paused = advance(before, told, 10.0, outlook).job
    assert (paused.phase, paused.places) == (Phase.PAUSING, (A, None))
    at_fence = {0: replace(facts[0], stage=Stage.PAUSED, generation=paused.generation)}
    after = advance(paused, at_fence, 11.0, outlook).job
    assert after.absent == (() if waits else (1,))
    assert after.phase is (Phase.PAUSING if waits else Phase.FORMING)
    late = advance(after, at_fence, 11.0 + (after.limits.reschedule_s if waits else 0.0), outlook).job
    assert late.absent == (1,)


@pytest.mark.parametrize(
    ("changed", "proof"),
    [
        ({}, True),
        ({"sole": False}, False),  # both may live: somebody has started a second one in the pod
        ({"pod": "another"}, False),
        ({"born": 50}, False),  # it is the older one of the two
        ({"boot": "rebootedpid:[7]"}, False),  # ticks of two clocks
        ({"id": "a"}, False),
    ],
)
def test_an_agent_alone_in_a_pod_proves_that_the_one_before_is_dead(changed: dict[str, Any], proof: bool) -> None:
    old = replace(A, pod="uid", sole=True, boot="kernelpid:[7]", pid=1, born=100)
    new = replace(old, id="b", boot="kernelpid:[8]", born=200)
    assert replace(new, **changed).came_after(old) is proof


def test_two_agents_of_no_pod_prove_nothing() -> None:
    assert not replace(B, sole=True, born=2).came_after(replace(A, born=1))


def test_a_script_that_deals_no_micro_batches_skips_the_rung_with_a_sentence() -> None:
    before = job(policies=parse_policies("elastic-training,dump"))
    lost = FaultReport("node", 1, before.incarnations[1], text="it is gone", at=10.0)
    outlook = following(A, gone=(B,))
    paused = advance(before, {**ranks(), 1: replace(ranks()[1], fault=lost)}, 10.0, outlook).job
    at_fence = {0: replace(ranks()[0], stage=Stage.PAUSED, generation=paused.generation)}
    after = advance(paused, at_fence, 11.0, outlook)
    assert after.job.absent == ()
    assert any("elastic-training needs run.batches(global_batch=...), which the script lacks" in w for w in after.why)
    assert after.job.incident is not None
    assert after.job.incident.policy != "elastic-training", "the next one is taken"
