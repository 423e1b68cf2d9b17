"""The recovery state machine: every fault leads on, and nothing is decided twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from advancing import Driven, error

from onward.core.agreement import Part
from onward.core.facts import FaultReport, RankFacts, Scope, Stage
from onward.core.job import Phase
from onward.core.policy import parse_policies
from onward.core.remedy import RETRY_LIMIT


def test_a_job_starts_forms_and_runs() -> None:
    d = Driven()
    assert d.go().job.phase is Phase.STARTING
    d.each(stage=Stage.SETUP).go()
    assert (d.job.phase, d.job.generation) == (Phase.FORMING, 1)
    d.each(0, 1, stage=Stage.FORMED, generation=1).go()
    assert d.job.phase is Phase.FORMING, "not before all are there"
    d.each(2, stage=Stage.FORMED, generation=1).go()
    assert d.job.phase is Phase.RUNNING
    assert d.job.deadline is None


def test_a_plain_script_never_leaves_starting_and_succeeds() -> None:
    d = Driven().each(library=False, stage=Stage.STARTING).go(100000.0)
    assert (d.job.phase, d.job.deadline) == (Phase.STARTING, None), "nobody waits, so there is no deadline"
    d.each(0, 1, stage=Stage.EXITED, exit_code=0).go()
    assert d.job.phase is Phase.STARTING
    d.each(2, stage=Stage.EXITED, exit_code=0).go()
    assert d.job.phase is Phase.SUCCEEDED


# ------------------------------------------------------------------------------------------------ one fault


def test_a_retryable_error_ends_no_process() -> None:
    d = Driven().running(20)
    d.each(1, fault=error(1, "RuntimeError: ECC", retryable="memory"), clean=False).go()
    assert (d.job.phase, d.job.generation) == (Phase.PAUSING, 2)
    assert d.job.incarnations == (1, 1, 1)
    assert d.job.incident is not None
    assert d.job.incident.policy == "retry"
    d.pause()
    assert d.job.phase is Phase.FORMING
    assert d.job.agreement is not None
    assert d.job.agreement.parts == {0: Part.KEEP, 1: Part.RECEIVE, 2: Part.KEEP}
    d.form()
    assert d.job.phase is Phase.RUNNING
    assert d.job.incident is not None, "not over before a step is committed again"
    d.commit(21)
    assert d.job.incident is None
    (incident,) = d.closed
    assert [stage for stage, _ in incident.timeline_ms()] == ["detect", "mend", "form", "resume"]
    assert d.job.restarts_used == 0


def test_an_error_that_comes_back_at_one_step_costs_its_process_in_the_end() -> None:
    """Three redos; then the rank that reports it is replaced instead."""
    d = Driven().running(20)
    for n in range(RETRY_LIMIT):
        d.each(1, fault=error(1, f"RuntimeError: ECC {n}", retryable="memory", at=50.0 + n)).go()
        assert d.job.incarnations == (1, 1, 1), f"redo {n + 1}"
        d.pause().form()
        d.each(stage=Stage.TRAINING)
    d.each(1, fault=error(1, "RuntimeError: ECC again", retryable="memory", at=60.0)).go()
    assert d.job.incarnations == (1, 2, 1)


def test_a_dead_rank_is_replaced_and_nobody_else() -> None:
    d = Driven().running(20).die(2)
    assert (d.job.phase, d.job.generation, d.job.incarnations) == (Phase.PAUSING, 2, (1, 1, 2))
    assert d.job.incident is not None
    assert "rank 2 killed (SIGKILL)" in d.job.incident.why[0]
    d.pause(0, 1)
    assert d.job.phase is Phase.PAUSING, "the replacement is not there yet"
    d.park(2, 20)
    assert d.job.agreement is not None
    assert (d.job.agreement.step, d.job.agreement.parts[2]) == (20, Part.RECEIVE)
    d.form().commit(21)
    assert d.job.incident is None
    assert d.closed[0].policy == "recover-in-place"
    assert d.job.restarts_used == 1


def test_the_survivors_tell_of_a_broken_connection_first() -> None:
    """The echo opens the incident as a retry; the death that caused it turns it into a replacement, in place."""
    d = Driven().running(20)
    echo = error(0, "RuntimeError: connection closed by peer", retryable="communication")
    d.each(0, fault=echo).go()
    assert d.job.incident is not None
    assert d.job.incident.policy == "retry"
    d.die(2)
    assert (d.job.generation, d.job.incarnations) == (2, (1, 1, 2))
    assert d.job.incident.number == 1
    assert d.job.incident is not None
    assert d.job.incident.root_cause.rank == 2


def test_who_left_early_is_the_cause_and_not_the_connection_that_broke_on_it() -> None:
    d = Driven().running(20)
    d.set(1, stage=Stage.EXITED, exit_code=0)
    d.go()
    assert d.job.incident is None, "it may have been the last to be needed"
    d.each(0, fault=error(0, "RuntimeError: connection closed by peer", retryable="communication")).go()
    assert d.job.incident is not None
    root = d.job.incident.root_cause
    assert (root.rank, root.early, root.step, root.others) == (1, True, 20, 20)
    assert "rank 1 ended its script before the others" in d.why[-1]
    assert d.job.incarnations == (1, 2, 1)


def test_of_those_seen_dead_at_once_the_killed_one_comes_first() -> None:
    d = Driven(4).running(20)
    for rank, code in ((0, 1), (1, -6), (2, -9), (3, 1)):
        d.set(rank, stage=Stage.EXITED, exit_code=code)
    d.go()
    assert d.story.root_cause.rank == 2


@pytest.mark.parametrize("code", [0, 3, -11])
def test_one_that_leaves_while_it_is_needed_is_replaced_whatever_its_exit_code(code: int) -> None:
    d = Driven().running(20).die(1)
    d.set(0, stage=Stage.EXITED, exit_code=code)
    d.go()
    assert d.job.incarnations == (2, 2, 1)
    assert d.job.generation == 2


def test_two_dead_at_once() -> None:
    d = Driven(4).running(20)
    d.set(1, stage=Stage.EXITED, exit_code=-9)
    d.set(2, stage=Stage.EXITED, exit_code=-11)
    d.go()
    assert (d.job.incarnations, d.job.generation, d.job.restarts_used) == ((1, 2, 2, 1), 2, 2)
    assert d.job.incident is not None
    assert len(d.job.incident.faults) == 2
    d.pause(0, 3).park(1, 20).park(2, 20)
    assert d.job.agreement is not None
    assert d.job.agreement.sources == (0, 3)


def test_a_hung_rank_is_replaced() -> None:
    d = Driven().running(20)
    d.each(0, fault=FaultReport("hang", 0, 1, step=20, text="rank 1, 2 waited", at=d.now)).go()
    assert d.job.incarnations == (2, 1, 1)


def test_a_fault_of_the_past_moves_nothing() -> None:
    d = Driven().running(20).die(2)
    now = d.job
    d.facts[2] = replace(d.facts[2], exit_code=-11, fault=error(2, at=999.0))  # incarnation 1 is no longer wanted
    assert d.go().job == now


def test_a_rank_out_of_range_is_no_rank() -> None:
    d = Driven().running(20)
    before = d.job
    for rank in (-1, 3, 99):
        d.facts[rank] = RankFacts(rank=rank, node=0, incarnation=1, stage=Stage.EXITED, exit_code=-9)
    assert d.go().job == before
    d.each(0, 1, 2, stage=Stage.DONE).go()
    assert d.job.phase is Phase.FINISHING, "and it keeps nobody from finishing"


# ------------------------------------------------------------------------------------------------ faults on faults


def test_a_fault_during_the_pause_is_merged_and_keeps_the_generation() -> None:
    d = Driven(4).running(20).die(1)
    assert d.job.generation == 2
    d.pause(0).die(3)
    assert d.job.generation == 2, "those at the fence of generation 2 need not move again"
    assert d.job.incarnations == (1, 2, 1, 2)
    assert d.job.incident is not None
    assert (d.job.incident.number, len(d.job.incident.faults)) == (1, 2)
    d.pause(0, 2).park(1, 20).park(3, 20).form().commit(21)
    assert len(d.closed) == 1


def test_a_replacement_that_dies_is_replaced_again() -> None:
    d = Driven().running(20).die(2).pause(0, 1)
    d.set(2, stage=Stage.EXITED, exit_code=-9)
    d.go()
    assert d.job.incarnations == (1, 1, 3)
    assert d.job.generation == 2


def test_a_fault_while_forming_opens_a_new_generation_of_the_same_incident() -> None:
    d = Driven().running(20).die(2).pause(0, 1).park(2, 20)
    assert (d.job.phase, d.job.generation) == (Phase.FORMING, 2)
    d.die(0)
    assert (d.job.phase, d.job.generation, d.job.incarnations) == (Phase.PAUSING, 3, (2, 1, 2))
    assert d.job.agreement is None
    assert d.job.incident is not None
    assert d.job.incident.number == 1
    d.pause(1)
    d.park(2, 20)
    d.park(0, 20)
    assert d.job.agreement is not None
    assert d.job.agreement.sources == (1,)
    d.form().commit(21)
    assert len(d.closed) == 1


def forming_with_a_replacement() -> Driven:
    """Rank 0 has died, and its replacement and the others form a group."""
    d = Driven().running(20).die(0)
    d.pause(1, 2).park(0, 20)
    assert (d.job.phase, d.job.generation) == (Phase.FORMING, 2)
    return d


def test_a_group_that_is_formed_once_more_is_still_that_of_a_replaced_process() -> None:
    d = forming_with_a_replacement()
    lost = error(1, "WireError: could not join generation 2: closed", retryable="communication")
    d.each(1, generation=2, stage=Stage.TRAINING, fault=lost).go()
    assert (d.job.phase, d.job.generation) == (Phase.PAUSING, 3)
    assert d.story.policy == "recover-in-place"
    assert d.why[-1].endswith("forming the group once more")


def test_what_broke_with_the_last_group_does_not_break_the_next_one() -> None:
    """The source dies; who reads from it sees that before it is told, and says so when the others form again."""
    d = forming_with_a_replacement().die(1)
    d.pause(2).park(1, 20)
    assert (d.job.phase, d.job.generation) == (Phase.FORMING, 3)
    lost = replace(error(0, "WireError: could not join generation 2: closed", retryable="communication"), incarnation=2)
    d.each(0, generation=2, stage=Stage.TRAINING, fault=lost).go()
    assert (d.job.phase, d.job.generation) == (Phase.FORMING, 3)
    d.form().commit(21)
    assert [i.policy for i in d.closed] == ["recover-in-place"]
    assert d.job.generation == 3


def test_an_agreement_is_not_made_with_those_of_an_older_pause() -> None:
    d = Driven().running(20).die(2).pause(0, 1).park(2, 20).die(0)
    assert d.job.generation == 3
    d.park(0, 20)
    d.park(2, 20)
    assert d.facts[1].generation == 2
    assert d.job.phase is Phase.PAUSING, "rank 1 has not been at the fence of generation 3"


def test_the_first_group_has_nothing_to_redo() -> None:
    d = Driven().each(stage=Stage.SETUP).go()
    assert d.job.phase is Phase.FORMING
    d.die(1)
    assert (d.job.phase, d.job.attempt, d.job.incarnations) == (Phase.STARTING, 1, (2, 2, 2))
    assert "no step to redo" in d.story.why[-1]


def test_a_rank_that_was_in_set_up_makes_all_start_again() -> None:
    d = Driven(policies=parse_policies("recover-in-place")).running(20)
    d.each(0, scope=Scope.SETUP)
    d.die(2).pause(0, 1).park(2, 20)
    assert (d.job.phase, d.job.ending) == (Phase.SAVING, "reload"), "the others hold steps that must not be lost"
    assert any("set-up" in why for why in d.story.why)
    d.each(kept=(20,), memory=(20,)).go()
    assert (d.job.phase, d.job.attempt) == (Phase.STARTING, 1)


def test_all_dead_start_again() -> None:
    d = Driven().running(20)
    d.each(stage=Stage.EXITED, exit_code=-9).go()
    assert (d.job.phase, d.job.attempt, d.job.incarnations) == (Phase.STARTING, 1, (2, 2, 2))
    assert d.job.restarts_used == 1
    assert d.job.generation == 2
    assert d.story.policy == "exit"
    d.facts.clear()
    d.running(3)
    assert d.job.generation > 2


def test_no_copy_left_starts_all_again() -> None:
    d = Driven(2).running(20)
    d.each(0, clean=False)
    d.die(1).pause(0).park(1, 20)
    assert (d.job.phase, d.job.attempt) == (Phase.STARTING, 1)
    assert "no complete copy" in d.story.why[-1]
