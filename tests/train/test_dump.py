"""Dump, reload and the last breath: a surviving copy is kept, and everybody goes on exactly there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from again import nightly
from test_checkpoint import ROOT, SCRIPT, STEPS, ledger, saved
from waiting import until

from onward.checkpoints import disk

pytestmark = pytest.mark.torch
DUMP = ["--recover-strategy", "retry,dump"]


def check(jobs, result, policy, nproc=2, more=()):
    assert result.code == 0, result.err[-3000:]
    assert result.policies() == [policy], result.incidents
    assert result.outcome["steps_lost"] == 0
    for rank in range(nproc):
        assert len(set(ledger(result, rank))) == len(ledger(result, rank)), "no step counted twice"
        assert set(ledger(result, rank)) == set(range(30)), "and none was left out"
    jobs.same_state(jobs.reference(SCRIPT, *STEPS, *more, nproc=nproc), result)


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("at", ["optimizer", *nightly("collective", "begin", "end")])
def test_a_killed_rank(jobs, tmp_path, rank, at):
    args = (*STEPS, "--dir", str(tmp_path), "--every", "1000")
    result = jobs.run(SCRIPT, *args, nproc=2, chaos=[f"kind=kill,rank={rank},step=16,at={at}"], flags=DUMP)
    check(jobs, result, "dump")
    (step,) = saved(tmp_path)
    assert step in (16, 17)
    folder = tmp_path / disk.folder_name(step)
    manifest = disk.read_manifest(folder)
    disk.verify(folder, manifest)
    assert (manifest.reason, manifest.world_size) == ("dump", 2)


@pytest.mark.nightly
def test_two_of_three_killed(jobs, tmp_path):
    args = (*STEPS, "--dir", str(tmp_path), "--every", "1000")
    result = jobs.run(SCRIPT, *args, nproc=3, chaos=["kind=double,rank=0+2,step=16"], flags=DUMP)
    check(jobs, result, "dump", nproc=3)


@pytest.mark.nightly
def test_with_collectives_and_draws_between_steps(jobs, tmp_path):
    args = (*STEPS, "--dir", str(tmp_path), "--every", "1000", "--between")
    result = jobs.run(SCRIPT, *args, nproc=2, chaos=["kind=kill,rank=1,step=16,at=forward"], flags=DUMP)
    check(jobs, result, "dump", more=("--between",))


def test_a_script_that_names_no_directory(jobs, tmp_path):
    flags = [*DUMP, "--dump-dir", str(tmp_path)]
    result = jobs.run(SCRIPT, *STEPS, nproc=2, chaos=["kind=kill,rank=1,step=16,at=optimizer"], flags=flags)
    check(jobs, result, "dump")
    assert len(saved(tmp_path)) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("appends", range(1, 10))
@pytest.mark.parametrize("lose", ["", ",lose=journal"])
def test_the_manager_dies_as_well_after_any_record(jobs, tmp_path, appends, lose):
    args = (*STEPS, "--dir", str(tmp_path), "--every", "1000")
    chaos = ["kind=kill,rank=1,step=16,at=optimizer", f"kind=kill-manager,step=2,appends={appends}{lose}"]
    result = jobs.run(SCRIPT, *args, nproc=2, chaos=chaos, flags=DUMP)
    check(jobs, result, "dump")
    assert len(result.outcome["chaos"]) == 2


@pytest.mark.nightly
def test_a_hung_rank(jobs, tmp_path):
    args = (*STEPS, "--dir", str(tmp_path), "--every", "1000")
    result = jobs.run(SCRIPT, *args, nproc=2, chaos=["kind=stop,rank=1,step=16"], flags=DUMP)
    check(jobs, result, "dump")


def test_a_disk_that_is_full_still_leaves_the_copy_in_memory(jobs, tmp_path):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(tmp_path)], check=False)
    if mounted.returncode:
        pytest.skip("only root can make a small file system")
    try:
        args = (*STEPS, "--dir", str(tmp_path), "--every", "1000")
        result = jobs.run(SCRIPT, *args, nproc=2, chaos=["kind=kill,rank=1,step=16,at=optimizer"], flags=DUMP)
        check(jobs, result, "exit")
        assert any("No space left" in why for why in result.incidents[0]["why"])
        assert saved(tmp_path) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("at", ["optimizer", *nightly("begin")])
def test_reload_from_memory(jobs, at):
    """No checkpoint anywhere, and a dead rank that may not be replaced in place: all start again and lose nothing."""
    flags = ["--recover-strategy", "retry,exit"]
    result = jobs.run(SCRIPT, *STEPS, nproc=2, chaos=[f"kind=kill,rank=0,step=16,at={at}"], flags=flags)
    check(jobs, result, "reload")


def steps_told(path: str) -> int:
    return len(Path(path).read_text().splitlines()) if os.path.exists(path) else 0


def test_the_job_is_stopped_and_started_again(jobs, tmp_path):
    ckpt, out = tmp_path / "ckpt", str(tmp_path / "half")
    command = [sys.executable, "-m", "onward.cli.main", "run", "--nproc-per-node", "2", "--log-dir", str(tmp_path)]
    args = [str(ROOT / SCRIPT), *STEPS, "--dir", str(ckpt), "--every", "1000"]
    job = subprocess.Popen([*command, *args, "--step-s", "0.2", "--digest", out], cwd=ROOT, stderr=subprocess.PIPE)
    try:
        until(lambda: steps_told(f"{out}.0.ledger") >= 3 or job.poll() is not None, "it has come to its third step")
        job.send_signal(signal.SIGTERM)
        said = job.communicate(timeout=60)[1].decode()
    finally:
        job.kill()
    assert job.returncode == 128 + signal.SIGTERM
    (step,) = saved(ckpt)
    assert f"to go on at step {step}, start it again with the same command" in said
    assert f"Stopped by SIGTERM: {step} steps" in said, "what is saved is what has been done"
    assert "starting a new one" not in said, "what becomes of the manager is nobody's concern now"
    assert disk.read_manifest(ckpt / disk.folder_name(step)).reason == "stop"
    result = jobs.run(SCRIPT, *STEPS, "--dir", str(ckpt), "--every", "1000", nproc=2)
    assert result.code == 0, result.err[-3000:]
    before = [int(line.split()[0]) for line in Path(f"{out}.1.ledger").read_text().splitlines()]
    assert before + ledger(result, 1) == list(range(30)), "nothing twice, nothing left out"
    jobs.same_state(jobs.reference(SCRIPT, *STEPS, nproc=2), result)
