"""The recovery state machine: every fault leads on, every wait ends, and nothing is decided twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.core.agreement import Part
from onward.core.facts import FaultReport, Progress, RankFacts, Scope, Stage
from onward.core.faults import IDENTICAL_LIMIT, signal_name
from onward.core.incident import Incident
from onward.core.job import Job, Limits, Phase, age, new_job
from onward.core.policy import Policy, parse_policies
from onward.core.recovery import advance
from onward.core.remedy import RETRY_LIMIT
from onward.core.succession import resumed

ALL = parse_policies("retry,recover-in-place,dump")


class Driven:
    """A job under `advance`, with the facts of its ranks at hand and a clock that is turned by hand."""

    def __init__(self, world: int = 3, policies: tuple[Policy, ...] = ALL, **limits: Any) -> None:
        self.job = new_job(world, policies, Limits(**limits))
        self.facts: dict[int, RankFacts] = {}
        self.now = 1000.0
        self.why: list[str] = []
        self.closed: list[Incident] = []

    def set(self, rank: int, **changes: Any) -> None:
        fresh = RankFacts(rank=rank, node=0, incarnation=self.job.incarnations[rank], library=True)
        old = self.facts.get(rank, fresh)
        self.facts[rank] = replace(old if old.incarnation == fresh.incarnation else fresh, **changes)

    def each(self, *ranks: int, **changes: Any) -> Driven:
        for rank in ranks or range(self.job.world_size):
            self.set(rank, **changes)
        return self

    def go(self, after: float = 0.0) -> Driven:
        """Let time pass, follow the facts, and check what must hold after every decision."""
        self.now += after
        before = self.job
        decision = advance(before, self.facts, self.now)
        again = advance(decision.job, self.facts, self.now)
        assert again.job == decision.job, "asked twice, it must answer the same"
        assert not again.closed
        assert decision.job.generation >= before.generation
        assert all(b >= a for a, b in zip(before.incarnations, decision.job.incarnations, strict=True))
        self.job = decision.job
        self.why += decision.why
        self.closed += decision.closed
        return self

    @property
    def story(self) -> Incident:
        """The first incident: closed, or still open because not everybody trains again."""
        first = self.closed[0] if self.closed else self.job.incident
        assert first is not None
        return first

    def running(self, step: int = 20) -> Driven:
        """Past the first steps of the first generation."""
        self.each(stage=Stage.SETUP).go()
        self.each(stage=Stage.FORMED, generation=self.job.generation).go()
        assert self.job.phase is Phase.RUNNING
        self.each(stage=Stage.READY, generation=self.job.generation, loadable=()).go()
        assert self.job.begun
        return self.commit(step)

    def commit(self, step: int) -> Driven:
        return self.each(
            stage=Stage.TRAINING,
            generation=self.job.generation,
            step=step,
            clean=True,
            undo=False,
            scope=Scope.STEP,
            resumed=True,
            fault=None,
            local_steps=(step - 1, step),
            progress=Progress(step=step),
        ).go()

    def die(self, rank: int, code: int = -9) -> Driven:
        self.set(rank, stage=Stage.EXITED, exit_code=code)
        return self.go()

    def park(self, rank: int, step: int) -> Driven:
        """The replacement that was asked for is there, and knows the local state of `step`."""
        self.set(rank, stage=Stage.PARKED, local_steps=(step - 1, step), step=-1)
        return self.go()

    def pause(self, *ranks: int) -> Driven:
        return self.each(*ranks, stage=Stage.PAUSED, generation=self.job.generation, resumed=False).go()

    def form(self) -> Driven:
        return self.each(stage=Stage.FORMED, generation=self.job.generation, resumed=False, fault=None).go()


def error(rank: int, text: str = "ValueError", step: int = 20, retryable: str = "", at: float = 50.0) -> FaultReport:
    return FaultReport("exception", rank, 1, step=step, text=text, retryable=retryable, at=at, traceback="Traceback")


# ------------------------------------------------------------------------------------------------ start, form, run


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


def test_the_end_of_the_loop_and_then_of_the_processes() -> None:
    d = Driven().running()
    d.each(stage=Stage.DONE).go()
    assert d.job.phase is Phase.FINISHING
    d.each(stage=Stage.EXITED, exit_code=0).go()
    assert d.job.phase is Phase.SUCCEEDED
    assert not d.closed


def test_how_a_process_goes_when_all_scripts_have_ended_does_not_matter() -> None:
    d = Driven().running()
    d.each(stage=Stage.AFTER).go()
    d.each(stage=Stage.LEFT).go()
    assert d.job.phase is Phase.LEAVING
    d.die(1, code=-9)
    assert d.job.incident is None, "nothing is left to be done again"
    d.die(0, code=0)
    d.die(2, code=0)
    assert d.job.phase is Phase.SUCCEEDED


def test_one_that_hangs_when_all_scripts_have_ended_is_not_waited_for() -> None:
    d = Driven().running()
    d.each(stage=Stage.AFTER).go()
    d.each(stage=Stage.LEFT).go()
    d.die(0, code=0)
    d.set(1, fault=FaultReport("hang", 1, 1, step=20, text="its process has been stopped", at=9.0))
    d.go()
    assert d.job.phase is Phase.LEAVING, "rank 2 may have something to write"
    d.die(2, code=0)
    assert (d.job.phase, d.job.incident) == (Phase.SUCCEEDED, None)


def test_a_node_that_is_lost_when_all_scripts_have_ended_undoes_nothing() -> None:
    d = Driven().running()
    d.each(stage=Stage.AFTER).go()
    d.each(stage=Stage.LEFT).go()
    d.each(1, 2, stage=Stage.EXITED, fault=FaultReport("node", 1, 1, step=20, text="node 1", at=9.0)).go()
    assert (d.job.phase, d.job.incident) == (Phase.LEAVING, None)
    d.die(0, code=0)
    assert d.job.phase is Phase.SUCCEEDED


INSIDE = Progress(step=20, inside=True)


def test_who_ends_in_a_step_that_does_not_count_has_not_ended_well() -> None:
    d = Driven().running(20)
    d.set(1, stage=Stage.EXITED, exit_code=0, progress=INSIDE)
    d.go()
    assert (d.job.phase, d.job.incarnations) == (Phase.PAUSING, (1, 2, 1))
    assert "rank 1 ended its script in a step that did not count" in d.why[-1]


def test_a_job_has_not_succeeded_where_all_end_in_a_step_that_does_not_count() -> None:
    d = Driven().running(20)
    d.each(stage=Stage.EXITED, exit_code=0, progress=INSIDE).go()
    assert (d.job.phase, d.job.attempt) == (Phase.STARTING, 1)


def test_a_job_has_not_succeeded_where_one_of_all_has_done_fewer_steps() -> None:
    d = Driven().running(20)
    d.each(stage=Stage.EXITED, exit_code=0)
    d.set(2, progress=Progress(step=19))
    d.go()
    assert (d.job.phase, d.job.attempt) == (Phase.STARTING, 1)
    assert (d.story.root_cause.rank, d.story.root_cause.early) == (2, True)


def test_who_has_left_after_fewer_steps_than_the_others_is_given_the_rest() -> None:
    d = Driven().running(20)
    d.each(stage=Stage.AFTER, broke=True).go()
    d.each(stage=Stage.LEFT)
    d.set(0, step=19)
    d.go()
    assert (d.job.phase, d.job.incarnations) == (Phase.PAUSING, (2, 1, 1))
    d.pause(1, 2).park(0, 20)
    assert d.job.agreement is not None
    assert d.job.agreement.parts[0] is Part.RECEIVE


def test_a_job_has_not_succeeded_where_all_are_replacements_that_never_held_the_state() -> None:
    d = Driven().running(20)
    d.each(stage=Stage.EXITED, exit_code=0, step=-1, progress=Progress()).go()
    assert (d.job.phase, d.job.attempt) == (Phase.STARTING, 1)


def test_what_has_ended_stays_ended() -> None:
    d = Driven().running()
    d.each(stage=Stage.EXITED, exit_code=0).go()
    over = d.job
    d.each(stage=Stage.EXITED, exit_code=-9).go(1e6)
    assert d.job == over


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


# ---------------------------------------------------------------------------------------- policies, budget, bugs


def test_an_incident_begins_when_the_process_died_whoever_was_there_to_see_it() -> None:
    d = Driven().running(20)
    d.set(1, stage=Stage.EXITED, exit_code=-9, dead_s=3.0)
    d.go()
    assert d.story.timeline_ms()[0] == ("detect", pytest.approx(3000.0))


def test_without_recover_in_place_a_death_restarts_all() -> None:
    d = Driven(policies=parse_policies("exit")).running(20).die(1)
    assert (d.job.phase, d.job.attempt) == (Phase.STARTING, 1)
    assert "recover-in-place is not configured" in d.story.why[-1]


def test_without_retry_an_error_restarts_all() -> None:
    d = Driven(policies=parse_policies("recover-in-place")).running(20)
    d.each(1, fault=error(1, retryable="memory")).go()
    assert (d.job.phase, d.job.ending) == (Phase.PAUSING, "reload")
    assert "retry is not configured" in d.story.why[-1]


def test_without_retry_a_broken_connection_waits_for_its_cause() -> None:
    """When a node dies, its peers' broken connections may be known before its death is."""
    d = Driven(policies=parse_policies("recover-in-place")).running(20)
    d.each(1, fault=error(1, retryable="communication")).go()
    d.pause(0, 1).pause(2).go(0.3)
    assert d.job.phase is Phase.PAUSING
    d.die(2).park(2, 20)
    assert (d.job.phase, d.job.incarnations) == (Phase.FORMING, (1, 1, 2))
    assert d.story.policy == "recover-in-place"


def test_where_all_start_again_the_dead_one_is_named_and_not_the_connection_that_broke_on_it() -> None:
    d = Driven(policies=parse_policies("exit")).running(20)
    d.each(1, fault=error(1, retryable="communication")).go()
    assert d.job.phase is Phase.PAUSING
    d.die(2)
    assert (d.job.phase, d.job.attempt) == (Phase.STARTING, 1)
    assert d.story.headline().startswith("rank 2 killed (SIGKILL)")
    assert d.story.policy == "exit"


def test_without_retry_a_broken_connection_with_no_cause_is_not_redone() -> None:
    d = Driven(policies=parse_policies("recover-in-place")).running(20)
    d.each(1, fault=error(1, retryable="communication")).go()
    d.pause().go(2.0)
    assert d.job.ending == "reload"
    assert "retry is not configured" in " ".join(d.story.why)


def test_the_budget_counts_processes_and_ends_with_the_root_cause() -> None:
    d = Driven(policies=parse_policies("retry,recover-in-place"), max_restarts=1).running(20).die(1)
    assert d.job.restarts_used == 1
    d.pause(0, 2).park(1, 20).form().commit(21)
    d.die(2, code=-11)
    assert d.job.phase is Phase.FAILED
    assert d.job.root_cause is not None
    assert (d.job.root_cause.rank, d.job.root_cause.text) == (2, "SIGSEGV")
    assert "limit of 1 restart is used up" in d.job.reason
    assert len(d.closed) == 2
    assert d.job.incident is None


def test_two_dead_need_two_of_the_budget() -> None:
    d = Driven(4, max_restarts=1).running(20)
    d.each(1, 2, stage=Stage.EXITED, exit_code=-9).go().pause(0, 3)
    assert d.job.phase is Phase.SAVING
    d.each(disk=(20,)).go()
    assert (d.job.phase, d.job.attempt) == (Phase.STARTING, 1), "one restart of all is still within the limit"
    d.die(0)
    assert d.job.phase is Phase.FAILED


def test_a_plain_script_restarts_as_a_whole_until_the_budget_is_used_up() -> None:
    d = Driven(2, max_restarts=2)
    for attempt, code in enumerate((1, 2)):
        d.each(library=False, stage=Stage.STARTING, pid=100).go().die(0, code)
        assert (d.job.phase, d.job.attempt) == (Phase.STARTING, attempt + 1)
    d.each(library=False, stage=Stage.STARTING, pid=100).go().die(1, 3)
    assert d.job.phase is Phase.FAILED
    assert d.job.root_cause is not None
    assert (d.job.root_cause.rank, d.job.root_cause.text) == (1, "exit code 3")


def test_three_identical_failures_of_a_plain_script_end_it() -> None:
    d = Driven(2)
    for n in range(1, IDENTICAL_LIMIT):
        d.each(library=False, stage=Stage.STARTING).die(0, 1)
        assert d.job.attempt == n
    d.each(library=False, stage=Stage.STARTING).die(0, 1)
    assert d.job.phase is Phase.FAILED
    assert "3 times" in d.job.reason
    assert d.job.root_cause is not None
    assert d.job.root_cause.incarnation == 1, "the first of them"


def test_failures_that_differ_are_not_identical() -> None:
    d = Driven(2)
    for n in range(8):
        d.each(library=False, stage=Stage.STARTING).die(0, 10 + n)
        assert d.job.attempt == n + 1


def test_the_users_own_bug_surfaces_the_second_time() -> None:
    d = Driven().running(20)
    d.each(1, fault=error(1, "ValueError: shapes")).go()
    assert d.job.incarnations == (1, 2, 1), "once may be a fluke of that process"
    d.pause(0, 2).park(1, 20).form()
    d.each(stage=Stage.TRAINING)
    d.each(1, fault=replace(error(1, "ValueError: shapes", at=60.0), incarnation=2)).go().pause(0, 2)
    assert (d.job.phase, d.job.ending) == (Phase.SAVING, "dump"), "a mended script can go on there"
    d.each(disk=(20,)).go()
    assert d.job.phase is Phase.FAILED
    assert d.job.root_cause is not None
    assert (d.job.root_cause.text, d.job.root_cause.incarnation) == ("ValueError: shapes", 1)
    assert d.job.root_cause.traceback
    assert "error in the script" in d.job.reason


def test_without_dump_the_users_own_bug_ends_the_job_at_once() -> None:
    d = Driven(policies=parse_policies("recover-in-place")).running(20)
    d.each(1, fault=error(1, "ValueError: shapes")).go().pause(0, 2).park(1, 20).form()
    d.each(stage=Stage.TRAINING)
    d.each(1, fault=replace(error(1, "ValueError: shapes", at=60.0), incarnation=2)).go()
    assert (d.job.phase, d.job.attempt) == (Phase.FAILED, 0)


def test_an_error_of_the_script_that_every_rank_raises_surfaces_at_once() -> None:
    """Else all would start again, from the beginning perhaps, to see it once more."""
    d = Driven().running(20)
    d.each(1, fault=error(1, "ValueError: shapes")).go()
    d.each(2, fault=error(2, "ValueError: shapes")).go()
    assert d.job.phase is Phase.PAUSING
    d.each(0, fault=error(0, "ValueError: shapes")).go()
    assert d.job.phase is Phase.FAILED
    assert "raised by every rank" in d.job.reason
    assert d.job.root_cause is not None
    assert d.job.root_cause.rank == 1, "the first one"


def test_what_may_pass_is_tried_again_though_every_rank_has_it() -> None:
    d = Driven().running(20)
    for rank in (1, 2, 0):
        d.each(rank, fault=error(rank, "OSError: [Errno 5] Input/output error")).go()
    assert d.job.phase is not Phase.FAILED


def test_the_same_error_at_another_step_is_not_the_same_bug() -> None:
    d = Driven().running(20)
    d.each(1, fault=error(1, "ValueError: shapes", step=20)).go()
    d.pause(0, 2).park(1, 20).form().commit(30)
    d.each(1, fault=replace(error(1, "ValueError: shapes", step=30, at=60.0), incarnation=2)).go()
    assert d.job.phase is Phase.PAUSING


def test_progress_wipes_the_slate() -> None:
    """A machine that kills one process a day does not end the job on the third day."""
    d = Driven().running(20)
    for n in range(10):
        step = 21 + n
        d.die(1)
        assert d.job.phase is Phase.PAUSING, f"death {n + 1}"
        d.pause(0, 2).park(1, step - 1).form().commit(step)
    assert len(d.closed) == 10


# ------------------------------------------------------------------------------------------------ deadlines


def test_one_that_never_starts() -> None:
    d = Driven(start_s=100.0)
    d.each(0, 1, stage=Stage.SETUP)
    d.each(2, stage=Stage.STARTING).go()
    assert d.job.deadline is not None
    d.go(99.0)
    assert d.job.attempt == 0
    d.go(1.5)
    assert (d.job.phase, d.job.attempt, d.job.incarnations) == (Phase.STARTING, 1, (2, 2, 2))
    assert "rank 2 did not start" in d.story.why[-1]
    assert d.story.root_cause.rank == 2


def test_one_that_does_not_come_to_the_fence_is_hung() -> None:
    d = Driven(pause_s=5.0).running(20).die(2)
    d.pause(0)
    d.go(4.9)
    assert d.job.incarnations == (1, 1, 2)
    d.go(0.2)
    assert d.job.incarnations == (1, 2, 2), "rank 1 lives, and does not come"
    assert d.job.generation == 2
    assert d.job.incident is not None
    assert [(f.kind, f.rank) for f in d.job.incident.faults] == [("signal", 2), ("hang", 1)]


def test_how_long_steps_take_is_added_to_the_pause() -> None:
    d = Driven(pause_s=5.0, steps_s=60.0).running(20).die(2)
    d.pause(0).go(64.0)
    assert d.job.incarnations == (1, 1, 2)
    d.go(2.0)
    assert d.job.incarnations == (1, 2, 2)


def test_a_section_may_take_long() -> None:
    d = Driven(pause_s=5.0, mend_s=600.0).running(20).die(2)
    d.each(1, progress=Progress(step=20, section=True))
    d.pause(0).park(2, 20)
    d.go(500.0)
    assert d.job.incarnations == (1, 1, 2)
    d.go(200.0)
    assert d.job.incarnations == (1, 2, 2), "but not for ever"


def test_a_replacement_gets_the_time_it_needs_to_come_up_and_no_more() -> None:
    d = Driven(pause_s=5.0, mend_s=600.0).running(20).die(2).pause(0, 1)
    d.each(2, stage=Stage.SETUP).go(10.0)
    assert d.job.phase is Phase.PAUSING
    d.go(500.0)
    assert d.job.phase is Phase.PAUSING
    d.go(100.0)
    assert any("replacement of rank 2" in why for why in d.story.why)
    assert (d.job.phase, d.job.attempt) == (Phase.STARTING, 1), "its local state of step 20 was not safe"


def test_a_group_that_does_not_form_is_tried_again_with_no_process_lost() -> None:
    d = Driven(form_s=15.0).running(20).die(2).pause(0, 1).park(2, 20)
    d.each(0, 1, stage=Stage.FORMED, generation=2).go(15.1)
    assert (d.job.phase, d.job.generation, d.job.incarnations) == (Phase.PAUSING, 3, (1, 1, 2))


def test_the_first_group_that_does_not_form_starts_all_again() -> None:
    d = Driven(form_s=15.0).each(stage=Stage.SETUP).go()
    d.go(15.1)
    assert (d.job.phase, d.job.attempt) == (Phase.STARTING, 1)


def test_a_group_that_never_forms_does_not_go_on_for_ever() -> None:
    """Nobody moves at all: the deadlines alone must bring it to an end."""
    d = Driven(max_restarts=10).running(20).die(2).pause(0, 1).park(2, 20)
    for _ in range(1000):
        d.go(1000.0)
        if d.job.phase is Phase.FAILED or (d.job.phase is Phase.STARTING and d.job.deadline is None):
            return
    pytest.fail(f"still {d.job.phase.value} in generation {d.job.generation}")


# ------------------------------------------------------------------------------------------------ managers


def test_a_new_manager_goes_on_with_new_deadlines() -> None:
    d = Driven(pause_s=5.0).running(20).die(2)
    job = resumed(d.job, 7.0)
    assert job.deadline == 12.0
    assert (job.phase, job.generation, job.incarnations) == (Phase.PAUSING, 2, (1, 1, 2))
    assert resumed(Driven().running(20).job, 7.0).deadline is None


def test_of_two_records_the_newer_one_is_known() -> None:
    d = Driven().running(20)
    seen = [d.job]
    for move in (lambda: d.die(2), lambda: d.pause(0, 1).park(2, 20), d.form):
        move()
        seen.append(d.job)
    assert [age(j) for j in seen] == sorted(age(j) for j in seen)
    assert len({age(j) for j in seen}) == len(seen)
    assert age(replace(seen[0], term=2)) > age(seen[-1]), "whoever took office later knows better"


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (11, "SIGSEGV"), (15, "SIGTERM"), (64, "signal 64")])
def test_signals_have_names(number: int, name: str) -> None:
    assert signal_name(number) == name


# ------------------------------------------------------------------------------------------------ total

short = st.sampled_from(["", "RuntimeError: x", "ValueError: y"])
faults = st.builds(
    FaultReport,
    kind=st.sampled_from(["exit", "signal", "exception", "hang", "stall", "start", "shape", "unheard of"]),
    rank=st.integers(0, 2),
    incarnation=st.integers(0, 4),
    step=st.integers(-1, 3),
    text=short,
    retryable=st.sampled_from(["", "memory", "communication"]),
    at=st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0]),
)
codes = st.none() | st.sampled_from([0, 1, -9])


@st.composite
def any_facts(draw: st.DrawFn, world: int) -> dict[int, RankFacts]:
    """Whatever agents could say, sense or nonsense."""
    found = {}
    for rank in draw(st.sets(st.integers(-1, world), max_size=world + 2)):
        fault = draw(st.none() | st.none() | faults)
        stage = draw(st.sampled_from(Stage))
        found[rank] = RankFacts(
            rank=rank,
            node=0,
            incarnation=draw(st.integers(0, 4)),
            stage=stage,
            generation=draw(st.integers(0, 5)),
            library=draw(st.booleans()),
            step=draw(st.integers(-1, 3)),
            clean=draw(st.booleans()),
            undo=draw(st.booleans()),
            scope=draw(st.sampled_from(Scope)),
            local_steps=tuple(draw(st.lists(st.integers(0, 3), max_size=2))),
            resumed=draw(st.booleans()),
            exit_code=draw(codes) if stage is Stage.EXITED else None,
            fault=replace(fault, rank=rank) if fault is not None else None,
            progress=Progress(step=draw(st.integers(-1, 3)), section=draw(st.booleans())),
        )
    return found


def believable(job: Job, facts: Mapping[int, RankFacts], want: bool) -> dict[int, RankFacts]:
    """With `want`, of the incarnations and the generation that the job has: else hardly anything ever follows."""
    if not want:
        return dict(facts)
    return {
        r: replace(f, incarnation=job.incarnations[r], generation=job.generation)
        for r, f in facts.items()
        if 0 <= r < job.world_size
    }


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from([1, 3]), st.sampled_from([0, 1, 3, 32767]))
def test_any_facts_in_any_order_lead_to_a_fixed_point(data: st.DataObject, world: int, budget: int) -> None:
    policies = data.draw(st.sampled_from([ALL, parse_policies("retry"), parse_policies("exit")]))
    job = new_job(world, policies, Limits(max_restarts=budget))
    now = 0.0
    for _ in range(data.draw(st.integers(1, 12))):
        now += data.draw(st.sampled_from([0.0, 0.1, 6.0, 20.0, 700.0, 2000.0]))
        facts = believable(job, data.draw(any_facts(world)), data.draw(st.booleans()))
        decision = advance(job, facts, now)
        assert not any("no fixed point" in why for why in decision.why)
        assert advance(decision.job, facts, now).job == decision.job
        assert decision.job.generation >= job.generation
        assert len(decision.job.incarnations) == world
        assert decision.job.restarts_used <= max(budget, 0)
        if decision.job.phase is Phase.FAILED and job.phase is not Phase.FAILED:
            assert decision.job.reason
            assert decision.job.root_cause is not None
        if decision.job.phase in (Phase.PAUSING, Phase.FORMING):
            assert decision.job.deadline is not None, "every wait has a deadline"
        job = decision.job


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_silence_after_any_history_ends(data: st.DataObject) -> None:
    """Whatever has happened, when nothing changes any more the deadlines lead out of every pause."""
    job, now = new_job(3, ALL, Limits(max_restarts=5)), 0.0
    facts: dict[int, RankFacts] = {}
    for _ in range(data.draw(st.integers(1, 6))):
        facts = believable(job, data.draw(any_facts(3)), data.draw(st.booleans()))
        job = advance(job, facts, now).job
    for _ in range(200):
        now += 5000.0
        job = advance(job, facts, now).job
    assert job.phase not in (Phase.PAUSING, Phase.FORMING), f"{job.phase.value} for ever"
