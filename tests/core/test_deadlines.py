"""Every wait ends: who does not come in time is left out of it, or all begin anew."""

from __future__ import annotations

import pytest
from advancing import Driven

from onward.core.facts import Progress, Stage
from onward.core.job import Phase


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
