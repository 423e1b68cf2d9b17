"""What a script sees: every step counts once, on every rank, whatever happened in between."""

from __future__ import annotations

import pytest
from again import nightly

pytestmark = pytest.mark.torch
SCRIPT = "tests/scripts/ledger.py"
FAULTS = [
    f"kind={kind},rank={rank},step={8 + 2 * i},at={at}"
    for i, (kind, rank, at) in enumerate(
        [
            ("kill", 1, "collective"),
            ("exception", 2, "optimizer"),
            ("kill", 0, "optimizer"),
            ("exception", 3, "end"),
            ("kill", 2, "end"),
            ("drop-connections", 1, "collective"),
            ("kill", 3, "forward"),
            ("exception", 0, "forward"),
        ]
    )
]


def ledger(result, rank):
    with open(f"{result.digest}.{rank}.ledger") as f:
        return [line.split() for line in f]


@pytest.mark.parametrize("mode", [("--noise",), *nightly(())], ids=["careful", "light"])
def test_no_gap_and_no_double(jobs, mode):
    reference, result = jobs.beside_reference(SCRIPT, "--steps", "40", *mode, chaos=FAULTS)
    assert result.code == 0, result.err[-3000:]
    assert len(result.incidents) >= 6
    jobs.same_state(reference, result)  # the protected ids of every sample drawn are part of it
    for rank in range(4):
        ours, expected = ledger(result, rank), ledger(reference, rank)
        assert [line[0] for line in ours] == [line[0] for line in expected], f"rank {rank}: steps as seen by the script"
        if len(result.pids(rank)) == 1:
            assert ours == expected, f"rank {rank} kept its process, so the losses it printed must agree too"
