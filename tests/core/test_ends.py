"""How a job ends well: all scripts have ended, after the same step, and that step counts."""

from __future__ import annotations

from dataclasses import replace

from advancing import Driven, error

from onward.core.agreement import Part
from onward.core.facts import FaultReport, Progress, Stage
from onward.core.faults import UNREACHED_LIMIT
from onward.core.job import Phase


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


def test_ranks_that_never_reach_one_another_are_not_started_for_ever() -> None:
    d = Driven()
    for start in range(1, UNREACHED_LIMIT + 1):
        assert d.job.phase is Phase.STARTING, start
        d.each(stage=Stage.SETUP, incarnation=start).go()
        assert d.job.phase is Phase.FORMING
        who = start % 3  # whoever says it first, in words of its own
        told = replace(error(who, f"{who}: no route", -1, "communication", float(start)), incarnation=start)
        d.set(who, generation=d.job.generation, fault=told)
        d.go()
        d.facts.clear()
    assert d.job.phase is Phase.FAILED
    assert d.job.reason == f"the ranks have not reached one another in {UNREACHED_LIMIT} starts"
    assert d.job.root_cause is not None
    assert d.job.root_cause.text == "1: no route"
