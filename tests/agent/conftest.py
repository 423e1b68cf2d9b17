"""A launcher for every test that wants one, and an end to all it has started."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched import Onward, alive, command, kill


@pytest.fixture
def onward(tmp_path: Path) -> Iterator[Onward]:
    made = Onward(tmp_path)
    yield made
    for job in made.started:
        job.gather()
        kill(job.pid)
        job.process.wait()
        deadline = time.monotonic() + 10.0  # its guard sweeps up; what it misses is a test's failure, not ours to hide
        while any(alive(pid) for pid in job.seen) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in job.seen:
            if alive(pid) and (str(tmp_path) in command(pid) or "onward" in command(pid)):
                kill(pid)
