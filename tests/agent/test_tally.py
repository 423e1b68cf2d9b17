"""Counting steps and time: a step counts when every rank has it, and nothing that was lost is hidden."""

from __future__ import annotations

import pytest

from onward.agent.tally import Tally


def test_a_step_counts_when_every_rank_has_committed_it() -> None:
    t = Tally()
    t.see([3, 2, 3], False, 1.0)
    assert t.step == 2


def test_nothing_is_lost_when_ranks_go_on_where_all_had_been() -> None:
    t = Tally()
    t.see([51, 50, 51], False, 1.0)
    t.see([51, -1, 51], True, 1.1)  # rank 1 is being replaced
    t.agreed(50)
    t.see([50, 50, 50], True, 1.2)
    assert (t.step, t.lost) == (50, 0)


def test_going_back_is_a_loss_whether_told_or_seen() -> None:
    told, seen = Tally(), Tally()
    for t in (told, seen):
        t.see([50, 50], False, 1.0)
    told.agreed(47)
    told.see([48, 47], True, 1.1)
    seen.see([47, 47], True, 1.1)
    assert (told.lost, seen.lost) == (3, 3)


def test_a_job_that_starts_again_has_lost_its_steps() -> None:
    t = Tally()
    t.see([30, 30], False, 1.0)
    t.see([-1, -1], False, 2.0)
    t.see([0, 0], False, 3.0)
    assert (t.step, t.lost) == (0, 30)


def test_goodput_of_an_undisturbed_run_is_one() -> None:
    t = Tally()
    for n in range(100):
        t.see([n, n], False, n * 0.1)
    assert t.times(10.0).goodput == 1.0


def test_goodput_counts_incidents_from_the_first_step_on() -> None:
    t = Tally()
    t.see([0], False, 50.0)  # set-up is not counted
    t.closed(7.0, 55.0)  # nor what happens in it
    t.see([1], False, 60.0)
    t.closed(2.0, 65.0)
    assert t.times(70.0).goodput == pytest.approx(0.8)


def test_a_node_that_joins_late_counts_from_its_first_step() -> None:
    t = Tally()
    t.see([-1], True, 99.0)
    t.see([500], True, 100.0)
    t.closed(30.0, 100.5)  # the incident that has brought it in
    t.see([510], False, 110.0)
    assert t.times(110.0).goodput == pytest.approx(0.95)


def test_goodput_counts_the_time_before_a_hang_was_noticed() -> None:
    t = Tally()
    for n in range(1, 11):
        t.see([n], False, float(n))
    t.see([10], False, 14.0)
    t.see([10], True, 15.0)  # stood still for five seconds, one of which a step takes
    assert t.times(15.0).goodput == pytest.approx(1 - 4 / 14, abs=0.01)


def test_goodput_falls_while_an_incident_is_open() -> None:
    t = Tally()
    for n in range(1, 11):
        t.see([n], False, float(n))
    t.see([10], True, 11.0)
    open_for = [t.times(11.0 + s).goodput for s in (0.0, 5.0, 10.0)]
    assert open_for == pytest.approx([1.0, 10 / 15, 10 / 20])
    t.closed(10.0, 21.0)
    assert t.times(21.0).goodput == pytest.approx(10 / 20), "and is no other when it is over"
    t.see([11], False, 21.0)
    t.see([21], False, 31.0)
    assert t.times(31.0).goodput == pytest.approx(20 / 30)


def test_what_an_incident_says_of_the_time_before_it_was_noticed_is_counted_once() -> None:
    t = Tally()
    for n in range(1, 11):
        t.see([n], False, float(n))
    t.see([10], True, 15.0)  # stood still for four seconds, which the incident knows of
    t.closed(6.0, 17.0, noticed_s=4.0)
    t.see([11], False, 17.0)
    assert t.times(21.0).goodput == pytest.approx(1 - 6 / 20, abs=0.01)


def test_goodput_counts_steps_that_are_run_again() -> None:
    t = Tally()
    for n in range(1, 11):
        t.see([n], False, float(n))
    for n in range(11):
        t.see([n], False, 11.0 + n)
    assert t.times(21.0).goodput == pytest.approx(0.5, abs=0.06)
