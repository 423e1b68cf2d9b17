"""Scripts put together at random, with faults at random: each ends as without faults, and as without onward.

A seed that fails is run again with `pytest -m nightly -k seed7- tests/nightly/test_anything.py`; what it is made of
is told by `python tests/scripts/anything.py --seed 7 --show`.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.nightly, pytest.mark.torch, pytest.mark.timeout(900)]
SCRIPT = "tests/scripts/anything.py"
ROOT = Path(__file__).resolve().parents[2]
STEPS = 20
KINDS = [*["kill"] * 8, "exception", "exception", "drop-connections", "segv", "stop"]
MOMENTS = ["begin", "forward", "collective", "collective", "optimizer", "end"]


def faults(pick: random.Random, nproc: int) -> list[str]:
    found = []
    for step in sorted(pick.sample(range(STEPS), pick.choice([3, 4, 5]))):
        kind, moment = pick.choice(KINDS), pick.choice(MOMENTS)
        if kind == "stop" and step < 4:
            kind = "kill"  # the first steps may take two minutes
        moment = "collective" if kind == "drop-connections" else moment
        found.append(f"kind={kind},rank={pick.randrange(nproc)},step={step},at={moment}")
    return found


def without_onward(tmp_path: Path, nproc: int, *args: str) -> str:
    """Run the same under torchrun; where its digest is."""
    digest = str(tmp_path / "plain")
    command = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc_per_node", str(nproc)]
    command += [str(ROOT / SCRIPT), *args, "--plain", "--digest", digest]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    for _ in range(2):  # of a job that ends at once now and then a rank finds the store of torchrun gone
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, env=env)
        if done.returncode == 0:
            return digest
    raise AssertionError(done.stderr[-3000:])


@pytest.mark.parametrize("seed", range(40), ids=lambda seed: f"seed{seed}-")
def test_a_script_at_random_ends_as_without_faults_and_as_without_onward(jobs, tmp_path, seed):
    pick = random.Random(seed)
    nproc, args = pick.choice([2, 2, 3, 4]), ("--seed", str(seed), "--steps", str(STEPS))
    chaos = faults(pick, nproc)
    result = jobs.run(SCRIPT, *args, nproc=nproc, chaos=chaos)
    assert result.code == 0, f"{chaos}\n{result.err[-3000:]}"
    plain = type(result)(0, "", "", {}, without_onward(tmp_path, nproc, *args))
    jobs.same_state(plain, result)
