"""Which policy answers a fault, what it costs, and whose fault is not worth another try."""

from __future__ import annotations

from dataclasses import replace

import pytest
from advancing import Driven, error

from onward.core.facts import Stage
from onward.core.faults import IDENTICAL_LIMIT, signal_name
from onward.core.job import Phase
from onward.core.policy import parse_policies


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


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (11, "SIGSEGV"), (15, "SIGTERM"), (64, "signal 64")])
def test_signals_have_names(number: int, name: str) -> None:
    assert signal_name(number) == name
