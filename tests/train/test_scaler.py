"""A GradScaler remembers what it has done for an optimizer, and does not say so: a redo must make it forget."""

from __future__ import annotations

import pytest
from again import nightly

pytestmark = pytest.mark.torch
SCRIPT = "tests/scripts/scaled.py"


@pytest.mark.parametrize("clip", [True, *nightly(False)], ids=["unscale-and-clip", "step"])
def test_unscaled_once_whatever_happens(jobs, clip: bool) -> None:
    args = ["--clip"] if clip else []
    faults = ["kind=kill,rank=1,step=10,at=optimizer", "kind=exception,rank=0,step=20,at=optimizer"]
    reference, result = jobs.beside_reference(SCRIPT, *args, nproc=2, chaos=faults)
    assert result.code == 0, result.err[-3000:]
    assert result.policies() == ["recover-in-place", "retry"]
    assert len(result.pids(0)) == 1
    jobs.same_state(reference, result)
