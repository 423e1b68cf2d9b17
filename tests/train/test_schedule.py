"""A schedule, and other protected state, changed after the block: in a replacement, too, each change counts once."""

from __future__ import annotations

import pytest
from again import nightly

pytestmark = pytest.mark.torch
SCRIPT = "tests/scripts/scheduled.py"
STORIES = {
    "in the block": ["1:5:block", "0:12:block", "0:13:block"],
    "before it is stepped": ["1:5:before", "0:12:before", "0:13:before", "2:29:before"],
    "after it is stepped": ["1:5:stepped", "0:12:stepped", "0:13:stepped", "2:29:stepped"],
    "two at once": ["1:5:stepped", "0:5:before", "2:12:block", "0:12:block"],
    "while another comes back": ["1:5:before", "0:6:block", "2:12:stepped", "1:13:before"],
    "in an evaluation between": ["1:4:evaluation", "0:9:evaluation", "2:14:before", "1:19:stepped", "0:20:block"],
    "without asking": ["1:1:end", "0:2:end", "1:10:block"],
}
AND_MORE = {"in an evaluation between": ("--evaluate", "5"), "without asking": ("--unasked",)}


@pytest.mark.parametrize("name", STORIES)
def test_each_change_counts_once(jobs, name: str) -> None:
    died = STORIES[name]
    args = AND_MORE.get(name, ())
    reference = jobs.reference(SCRIPT, *args, nproc=3)
    result = jobs.run(SCRIPT, *args, *_die(died), nproc=3)
    assert result.code == 0, result.err[-3000:]
    assert sum(len(result.pids(rank)) - 1 for rank in range(3)) == len(died), result.incidents
    assert result.outcome["steps_lost"] == 0
    jobs.same_state(reference, result)


def _die(specs: list[str]) -> list[str]:
    return [word for spec in specs for word in ("--die", spec)]


@pytest.mark.parametrize("moment", ["before", *nightly("block", "stepped")])
@pytest.mark.parametrize("policy", ["dump", *nightly("exit")])
def test_where_all_start_again(jobs, tmp_path, moment: str, policy: str) -> None:
    reference = jobs.reference(SCRIPT, nproc=3)
    flags = ["--recover-strategy", f"retry,{policy}", "--dump-dir", str(tmp_path)]
    result = jobs.run(SCRIPT, *_die([f"1:12:{moment}"]), nproc=3, flags=flags)
    assert result.code == 0, result.err[-3000:]
    assert result.policies() == ["dump" if policy == "dump" else "reload"]
    assert result.outcome["steps_lost"] == 0
    jobs.same_state(reference, result)
