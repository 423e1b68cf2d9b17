"""A fault while state goes from one rank to another: whoever is left gives it, to all that lack it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
SCRIPT = "tests/scripts/transferred.py"
FIRST = ["kind=kill,rank=1,step=20,at=optimizer"]
CASES = {  # who dies while state is sent or taken over, and how many processes each rank has then had
    "source": (["0:sending"], [2, 2, 1]),
    "receiver": (["1:taking"], [1, 3, 1]),
    "one after the other": (["0:sending", "1:taking"], [2, 3, 1]),
}


def fired(result, deaths: list[str]) -> bool:
    return all(Path(f"{result.digest}.{name}").exists() for name in deaths)


@pytest.mark.parametrize("case", CASES)
def test_a_death_while_state_is_given(jobs, case):
    deaths, processes = CASES[case]
    result = jobs.run(SCRIPT, "--die", *deaths, nproc=3, chaos=FIRST)
    assert result.code == 0, result.err[-3000:]
    assert fired(result, deaths), result.err[-3000:]
    assert [len(result.pids(r)) for r in range(3)] == processes
    assert set(result.policies()) == {"recover-in-place"}
    assert result.outcome["steps_lost"] == 0
    jobs.same_state(jobs.reference(SCRIPT, nproc=3), result)


def test_the_last_one_that_held_it(jobs):
    """Nobody is left to give it: all begin again, which is said, and come to the same end."""
    result = jobs.run(SCRIPT, "--die", "0:sending", nproc=2, chaos=FIRST)
    assert result.code == 0, result.err[-3000:]
    assert fired(result, ["0:sending"])
    gone = ("no complete copy of the state is left", "no rank is left that holds the state")
    assert any(f"{why}; restarting all 2 ranks; starting from the beginning" in result.err for why in gone), result.err
    assert result.policies()[-1] == "exit"
    assert result.outcome["steps_lost"] == 20
    jobs.same_state(jobs.reference(SCRIPT, nproc=2), result)


def test_one_spare_for_all(jobs):
    """It stands by for the lowest rank. Another rank's process is forked when it is needed, and that is all."""
    faults = [f"kind=kill,rank={rank},step={step}" for rank, step in ((0, 60), (2, 90), (0, 120))]
    result = jobs.run("examples/ddp_min.py", "--steps", "150", chaos=faults, flags=["--spares", "one"])
    assert result.code == 0, result.err[-3000:]
    assert [len(result.pids(r)) for r in range(4)] == [3, 1, 2, 1], result.incidents
    assert set(result.policies()) == {"recover-in-place"}
    assert result.outcome["steps_lost"] == 0
    jobs.same_state(jobs.reference("examples/ddp_min.py", "--steps", "150"), result)
