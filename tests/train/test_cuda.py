"""The same on a CUDA device: several ranks on one GPU talk over gloo, state lives in device memory."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    probe = [sys.executable, "-c", "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 1)"]
    return os.path.exists("/dev/nvidiactl") and subprocess.run(probe, check=False).returncode == 0


pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not _has_cuda(), reason="needs a CUDA device")]
SCRIPT, ARGS = "tests/scripts/cuda/mlp.py", ("--steps", "40")


@pytest.mark.parametrize(
    "fault",
    [
        "kind=kill,rank=1,step=20,at=forward",
        "kind=kill,rank=0,step=20,at=optimizer",
        "kind=stop,rank=1,step=20",
        "kind=exception,rank=1,step=20",
        "kind=exception,rank=1,step=20,text=CUDA error: uncorrectable ECC error encountered",
        "kind=drop-connections,rank=0,step=20,at=collective",
    ],
)
def test_a_fault_on_a_gpu(jobs, fault):
    result = jobs.run(SCRIPT, *ARGS, nproc=2, chaos=[fault])
    assert result.code == 0, result.err[-4000:]
    assert len(result.incidents) == 1
    assert result.outcome["steps_lost"] == 0
    jobs.same_state(jobs.reference(SCRIPT, *ARGS, nproc=2), result)
