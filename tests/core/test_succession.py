"""What a new manager makes of the record of the last one."""

from __future__ import annotations

from dataclasses import replace

from advancing import Driven

from onward.core.job import Phase, age
from onward.core.succession import resumed


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
