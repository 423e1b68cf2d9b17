"""A rank that is slower than the others is named, with evidence, while it is; nothing is stopped for it."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
SCRIPT = "tests/scripts/paced.py"


def test_a_slow_rank_is_named_and_cleared_and_nobody_else_is(jobs) -> None:
    slow = "kind=slow,rank=2,step=10,delay=0.3,steps=25"
    result = jobs.run(SCRIPT, "--steps", "90", "--pace", "0.05", chaos=[slow], flags=["--spares", "none"])
    assert result.code == 0, result.err
    assert [f["kind"] for f in result.outcome["chaos"]] == ["slow"], "the fault fired"
    (found,) = result.outcome["conditions"]
    assert (found["kind"], found["node"], found["rank"]) == ("slow", 0, 2)
    assert found["since"] < found["until"], "it was over before the job was"
    assert "rank 2 is slow: it computes" in result.err
    assert "over: sub-health: node 0, rank 2 is slow" in result.err
    assert not result.incidents
    assert len(result.pids(2)) == 1
