"""A launcher for every test that wants one, and an end to all it has started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel import alive
from launched import Launched, Onward, command, kill
from waiting import within


@pytest.fixture
def onward(tmp_path: Path) -> Iterator[Onward]:
    made = Onward(tmp_path)
    yield made
    left = [end(job, tmp_path) for job in made.started]
    assert not any(left), "a launcher that is killed takes with it all that it has started"


def end(job: Launched, place: Path) -> dict[int, str]:
    """What its guard leaves is ended here, and told."""
    job.gather()
    kill(job.pid)
    job.process.wait()
    within(60.0, lambda: not any(map(alive, job.seen)))
    left = {pid: command(pid) for pid in job.seen if alive(pid)}
    left = {pid: line for pid, line in left.items() if str(place) in line or "onward" in line}
    for pid in left:
        kill(pid)
    return left
