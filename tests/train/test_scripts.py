"""Ordinary scripts: ten run unchanged and compute what torchrun computes; five converted ones survive a kill."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from again import nightly

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.torch
PLAIN = sorted(p.name for p in (ROOT / "tests/scripts/plain").glob("*.py") if p.name != "digest_out.py")
CONVERTED = sorted(p.name for p in (ROOT / "tests/scripts/converted").glob("*.py") if p.name != "digest_out.py")


def torchrun(script, tmp_path, *args, nproc=2):
    """Run it under torchrun; where its digest is."""
    digest = str(tmp_path / "torchrun")
    command = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc_per_node", str(nproc)]
    command += [str(ROOT / script), *args, "--digest", digest]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, capture_output=True, timeout=240, env=env)
    return digest


def test_there_are_ten_and_five():
    assert len(PLAIN) == 10
    assert len(CONVERTED) == 5


@pytest.mark.parametrize("name", [*PLAIN[:1], *nightly(*PLAIN[1:])])
def test_a_torchrun_script_computes_the_same(jobs, tmp_path, name):
    script = f"tests/scripts/plain/{name}"
    ours = jobs.run(script, "--steps", "8", nproc=2)
    assert ours.code == 0, ours.err[-3000:]
    jobs.same_state(type(ours)(0, "", "", {}, torchrun(script, tmp_path, "--steps", "8")), ours)


@pytest.fixture(scope="module")
def unchanged(jobs):
    """The runs of all plain scripts, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        runs = {name: pool.submit(jobs.run, f"tests/scripts/plain/{name}", "--steps", "8", nproc=2) for name in PLAIN}
        yield lambda name: runs[name].result()


@pytest.mark.parametrize("name", PLAIN)
def test_a_torchrun_script_runs_unchanged(unchanged, name):
    ours = unchanged(name)
    assert ours.code == 0, ours.err[-3000:]
    assert ours.outcome["incidents"] == []
    assert all(Path(f"{ours.digest}.{rank}.pt").exists() for rank in range(2)), "each came to its end"


OFTEN = ("eval_collectives.py", "gan.py", "loader_workers.py")


@pytest.mark.parametrize("name", [*OFTEN, *nightly(*sorted({*CONVERTED} - {*OFTEN}))])
def test_a_converted_script_survives_kills(jobs, name):
    script, steps = f"tests/scripts/converted/{name}", ("--steps", "40")
    faults = ["rank=1,step=8,at=end", "rank=2,step=18,at=forward", "rank=0,step=28,at=optimizer"]
    reference, result = jobs.beside_reference(script, *steps, chaos=[f"kind=kill,{fault}" for fault in faults])
    assert result.code == 0, result.err[-3000:]
    assert result.policies() == ["recover-in-place"] * 3
    assert [len(result.pids(r)) for r in range(4)] == [2, 2, 2, 1], result.incidents
    assert result.outcome["steps_lost"] == 0
    jobs.same_state(reference, result)


def test_faults_inside_an_evaluation(jobs):
    """Now and then the script evaluates with collectives of its own: the first of them is where the faults strike."""
    script, steps = "tests/scripts/converted/eval_collectives.py", ("--steps", "40")
    faults = ["kind=kill,rank=2,step=10", "kind=kill,rank=0,step=20", "kind=drop-connections,rank=1,step=30"]
    result = jobs.run(script, *steps, chaos=[f"{fault},at=collective" for fault in faults])
    assert result.code == 0, result.err[-3000:]
    assert result.policies() == ["recover-in-place", "recover-in-place", "retry"]
    jobs.same_state(jobs.reference(script, *steps), result)


@pytest.mark.nightly
def test_the_library_changes_no_number(jobs, tmp_path):
    """One loop body with the library, with it and a kill, and without it under torchrun: one and the same state."""
    script = "tests/scripts/both_ways.py"
    ours = jobs.run(script, "--with-onward", nproc=3)
    assert ours.code == 0, ours.err[-3000:]
    plain = type(ours)(0, "", "", {}, torchrun(script, tmp_path, nproc=3))
    jobs.same_state(plain, ours)
    killed = jobs.run(script, "--with-onward", nproc=3, chaos=["kind=kill,rank=1,step=7,at=collective"])
    assert killed.policies() == ["recover-in-place"]
    jobs.same_state(plain, killed)


UNUSUAL = {
    "turns": "kill,rank=1,step=2,at=collective kill,rank=0,step=11,at=forward exception,rank=2,step=17,at=end",
    "groups": "kill,rank=2,step=8,at=forward exception,rank=1,step=9,at=optimizer kill,rank=0,step=15,at=end",
    "carried": "kill,rank=2,step=1,at=collective exception,rank=0,step=9,at=optimizer kill,rank=1,step=15,at=begin",
    "by-hand": "exception,rank=1,step=0,at=end kill,rank=0,step=9,at=forward exception,rank=2,step=16,at=end",
    "apart": "kill,rank=2,step=2,at=collective exception,rank=1,step=9,at=optimizer kill,rank=0,step=16,at=end",
    "closure": "kill,rank=0,step=1,at=optimizer exception,rank=1,step=9,at=collective kill,rank=2,step=16,at=end",
}


@pytest.mark.parametrize("kind", ["turns", *nightly("groups", "closure", "by-hand", "apart")])
def test_unusual_scripts_come_to_the_same_state(jobs, kind):
    script, args, faults = "tests/scripts/unusual.py", ("--kind", kind), UNUSUAL[kind].split()
    reference, result = jobs.beside_reference(script, *args, nproc=3, chaos=[f"kind={fault}" for fault in faults])
    assert result.code == 0, result.err[-3000:]
    wanted = ["recover-in-place" if fault.startswith("kill") else "retry" for fault in faults]
    assert result.policies() == wanted
    assert result.outcome["steps_lost"] == 0
    jobs.same_state(reference, result)


def test_what_a_script_holds_of_its_protected_state_is_put_back(jobs):
    faults = ["exception,rank=1,step=6,at=optimizer", "kill,rank=1,step=10", "kill,rank=0,step=17,at=end"]
    reference, result = jobs.beside_reference(
        "tests/scripts/containers.py", nproc=2, chaos=[f"kind={fault}" for fault in faults]
    )
    assert result.code == 0, result.err[-3000:]
    assert result.policies() == ["retry", "recover-in-place", "recover-in-place"]
    jobs.same_state(reference, result)
    assert all(all(torch.load(f"{result.digest}.{rank}.pt")["held"]) for rank in range(2))


@pytest.mark.parametrize("kind", ["power-sgd", *nightly("own", "built-in")])
def test_what_a_communication_hook_keeps_is_put_back(jobs, kind):
    faults = ["kill,rank=0,step=3,at=end", "exception,rank=1,step=8,at=end", "kill,rank=1,step=14,at=collective"]
    reference, result = jobs.beside_reference(
        "tests/scripts/hooks.py", "--kind", kind, nproc=2, chaos=[f"kind={fault}" for fault in faults]
    )
    assert result.code == 0, result.err[-3000:]
    assert result.policies() == ["recover-in-place", "retry", "recover-in-place"]
    jobs.same_state(reference, result)


def test_state_that_no_other_rank_has_is_refused(jobs):
    result = jobs.run("tests/scripts/sharded.py", nproc=2)
    assert result.code == 1
    assert "zero is a ZeroRedundancyOptimizer: each rank holds a part of its state that no other has" in result.err
    assert "wrapped is wrapped by FullyShardedDataParallel: each rank holds a part of it that no other" in result.err
    for name in ("spread", "adam"):
        assert f"{name} has parameters that are DTensors" in result.err


def test_functional_collectives_and_sharded_tensors(jobs):
    script = "tests/scripts/functional.py"
    faults = ["kill,rank=1,step=8,at=forward", "exception,rank=0,step=30,at=collective"]
    faults.append("kill,rank=0,step=50,at=collective")
    reference, result = jobs.beside_reference(script, nproc=2, chaos=[f"kind={fault}" for fault in faults])
    assert result.code == 0, result.err[-3000:]
    assert result.policies() == ["recover-in-place", "retry", "recover-in-place"]
    jobs.same_state(reference, result)


@pytest.mark.parametrize("where", ["inside", *nightly("after")])
def test_every_kind_of_collective(jobs, where):
    script, args = "tests/scripts/collectives.py", ("--where", where)
    faults = ["kill,rank=1,step=8,at=collective", "exception,rank=0,step=23,at=forward", "kill,rank=2,step=37,at=end"]
    reference, result = jobs.beside_reference(script, *args, nproc=3, chaos=[f"kind={fault}" for fault in faults])
    assert result.code == 0, result.err[-3000:]
    assert result.policies() == ["recover-in-place", "retry", "recover-in-place"]
    jobs.same_state(reference, result)


LATE = {
    "model": "norm",  # with buffers that grow, or are there from the first use on
    "late": "buffer",
    "wrapper": {"broadcast_buffers": False},
    "data": "loader",  # whose samples are drawn at random in the process that trains
    "accumulate": "later",  # from step 12 on three go together; each zeroes what it finds before
    "zero": "before",
    "noise": "sometimes",  # drawn after the update
    "inside": ["async"],  # waited for after the update
    "between": ["async"],  # waited for in another order
    **dict.fromkeys(("schedule", "average")),
    **{"optimizer": "Adam", "how": {}, "loop": "for", "low": False, "clip": False},
}


def test_what_a_script_begins_late_survives_faults(jobs):
    faults = ["exception,rank=1,step=4,at=end", "kill,rank=0,step=10,at=forward", "kill,rank=1,step=13,at=end"]
    args = ("--steps", "18", *(f"--set={name}={value!r}" for name, value in LATE.items()))
    script = "tests/scripts/anything.py"
    reference, result = jobs.beside_reference(script, *args, nproc=2, chaos=[f"kind={fault}" for fault in faults])
    assert result.code == 0, result.err[-3000:]
    assert result.policies() == ["retry", "recover-in-place", "recover-in-place"]
    jobs.same_state(reference, result)
