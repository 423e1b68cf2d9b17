"""Checkpoints: what is resumed is bit for bit what was interrupted, and nothing damaged is ever loaded."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from again import nightly
from waiting import until

from onward.checkpoints import disk, memory
from onward.core.checkpoints import SavedFile

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.torch
SCRIPT, STEPS = "tests/scripts/saves.py", ("--steps", "30")


def save(jobs, directory, *more, steps=22, every=10, nproc=2, **options):
    """Run up to `steps` with checkpoints. Each of them is written before the next is due."""
    args = ("--steps", str(steps), "--every", str(every), "--dir", str(directory), *more)
    result = jobs.run(SCRIPT, *args, nproc=nproc, **options)
    assert result.code == 0, result.err[-3000:]
    return result


def resume(jobs, directory, *more, every=1000, **options):
    options.setdefault("nproc", 2)
    return jobs.run(SCRIPT, *STEPS, "--every", str(every), "--dir", str(directory), *more, **options)


def saved(directory):
    return sorted(int(f.name[5:]) for f in disk.folders(directory))


def ledger(result, rank=0):
    return [int(line.split()[0]) for line in Path(f"{result.digest}.{rank}.ledger").read_text().splitlines()]


# ------------------------------------------------------------------------------------------------ save and resume


@pytest.mark.parametrize("more", [(), *nightly(("--between",))], ids=["plain", "drawing-between-steps"])
def test_a_resumed_run_ends_bit_for_bit_like_an_uninterrupted_one(jobs, tmp_path, more):
    save(jobs, tmp_path, "--wait", *more)
    assert saved(tmp_path) == [10, 20]
    result = resume(jobs, tmp_path, *more)
    assert result.code == 0, result.err[-3000:]
    assert ledger(result) == list(range(20, 30)), "it went on at step 20, and ran each step once"
    assert not result.incidents
    jobs.same_state(jobs.reference(SCRIPT, *STEPS, *more, nproc=2), result)


def test_what_is_in_a_checkpoint(jobs, tmp_path):
    """Any reader of safetensors can open it; older ones than `keep` are gone."""
    from safetensors.torch import load_file

    save(jobs, tmp_path, "--keep", "2", "--wait", steps=30)
    assert saved(tmp_path) == [20, 30], "the last one is written before the job ends"
    folder = tmp_path / "step-00000030"
    manifest = json.loads((folder / "manifest.json").read_text())
    told = [manifest[key] for key in ("step", "world_size", "job", "reason")]
    assert told == [30, 2, "saves", "periodic"]
    assert {f["name"] for f in manifest["files"]} == {"shared.safetensors", "local-00000.bin", "local-00001.bin"}
    tensors = load_file(folder / "shared.safetensors")
    assert tensors["model.module.0.weight"].shape == (64, 16)
    assert tensors["optimizer/0.0/exp_avg"].shape == (64, 16)
    assert not disk.unfinished(tmp_path)


@pytest.mark.nightly
def test_a_finished_run_that_is_started_again_is_finished(jobs, tmp_path):
    first = save(jobs, tmp_path, "--wait", steps=30)
    again = resume(jobs, tmp_path)
    assert again.code == 0, again.err[-3000:]
    jobs.same_state(first, again)


@pytest.mark.nightly
def test_a_fresh_start_sets_earlier_checkpoints_aside(jobs, tmp_path):
    save(jobs, tmp_path, "--wait")
    result = resume(jobs, tmp_path, "--fresh")
    assert result.code == 0, result.err[-3000:]
    assert ledger(result)[0] == 0
    assert saved(tmp_path) == []
    assert len(list(tmp_path.glob("earlier-*/step-*"))) == 2
    jobs.same_state(jobs.reference(SCRIPT, *STEPS, nproc=2), result)


@pytest.mark.parametrize("nproc", nightly(3, 1))
def test_another_number_of_ranks(jobs, tmp_path, nproc):
    save(jobs, tmp_path, "--wait")
    result = resume(jobs, tmp_path, nproc=nproc)
    assert result.code == 0, result.err[-3000:]
    assert ledger(result, rank=nproc - 1) == list(range(20, 30))
    assert f"was saved by 2 ranks and is loaded by {nproc}" in result.err + result.out


def test_a_rank_that_was_absent_when_it_was_saved_begins_where_the_others_do(tmp_path):
    """What they still have to run after that step holds collectives: all run them, or none."""
    from onward.train.checkpoint import Checkpoints

    welcome = SimpleNamespace(memory_dir=str(tmp_path), dump_dir=str(tmp_path), rank=2, world_size=3)
    for step, begun in ((16, 15), (17, 17)):
        unfinished = tmp_path / disk.unfinished_name(step, "r", 1)
        unfinished.mkdir()
        memory.keep_local(tmp_path, 0, step, begun, b"its image")
        local = unfinished / disk.local_name(0)
        shutil.move(memory.local_path(tmp_path, 0, step), local)
        files = [SavedFile(local.name, local.stat().st_size, disk.sha256_of(local))]
        made = disk.Manifest(
            format=disk.FORMAT, job="", run="r", step=step, world_size=2, torch="", reason="", created="", files=files
        )
        disk.publish(tmp_path, unfinished, made, 3)
        assert Checkpoints(SimpleNamespace(welcome=welcome), None, None).begun(step) == begun


# ------------------------------------------------------------------------------------------------ damage


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


DAMAGE = {
    "bit-flipped": ("shared.safetensors", flip),
    "local-bit-flipped": ("local-00001.bin", flip),
    "truncated": ("shared.safetensors", cut),
    "missing": ("local-00000.bin", Path.unlink),
    "manifest-missing": ("manifest.json", Path.unlink),
    "manifest-damaged": ("manifest.json", flip),
}


@pytest.fixture(scope="module")
def two_checkpoints(jobs, tmp_path_factory):
    directory = tmp_path_factory.mktemp("two")
    save(jobs, directory, "--wait")
    assert saved(directory) == [10, 20]
    return directory


USUAL = ("bit-flipped",)


@pytest.mark.parametrize("kind", [*USUAL, *nightly(*sorted({*DAMAGE} - {*USUAL}))])
def test_a_damaged_checkpoint_is_skipped_with_the_name_of_the_file(jobs, tmp_path, two_checkpoints, kind):
    directory = tmp_path / "ckpt"
    shutil.copytree(two_checkpoints, directory)
    name, damage = DAMAGE[kind]
    damage(directory / "step-00000020" / name)
    result = resume(jobs, directory)
    assert result.code == 0, result.err[-3000:]
    assert ledger(result) == list(range(10, 30))
    assert str(directory / "step-00000020" / name) in result.out + result.err
    jobs.same_state(jobs.reference(SCRIPT, *STEPS, nproc=2), result)


@pytest.mark.nightly
def test_with_nothing_valid_it_begins_afresh(jobs, tmp_path, two_checkpoints):
    directory = tmp_path / "ckpt"
    shutil.copytree(two_checkpoints, directory)
    for folder in disk.folders(directory):
        flip(folder / "shared.safetensors")
    result = resume(jobs, directory)
    assert result.code == 0, result.err[-3000:]
    jobs.same_state(jobs.reference(SCRIPT, *STEPS, nproc=2), result)


@pytest.mark.nightly
def test_a_checkpoint_of_another_model_is_refused(jobs, tmp_path, two_checkpoints):
    directory = tmp_path / "ckpt"
    shutil.copytree(two_checkpoints, directory)
    result = resume(jobs, directory, "--width", "32", flags=["--recover-strategy", "exit"])
    assert result.code == 1
    assert "the script built another model" in result.err + result.out


# ------------------------------------------------------------------------------------------------ trouble while saving


def test_a_directory_that_cannot_be_written_is_refused(jobs, tmp_path):
    (tmp_path / "file").write_text("")
    result = resume(jobs, tmp_path / "file" / "ckpt", flags=["--recover-strategy", "exit"])
    assert result.code == 1
    assert "cannot write to" in result.err + result.out
    assert "Not a directory" in result.err + result.out


@pytest.mark.nightly
def test_two_jobs_cannot_use_one_directory(jobs, tmp_path):
    command = [sys.executable, "-m", "onward.cli.main", "run", "--nproc-per-node", "1", "--job-name", "first"]
    command += ["--log-dir", str(tmp_path / "logs"), str(ROOT / SCRIPT), "--steps", "100000", "--dir", str(tmp_path)]
    first = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        lock = tmp_path / ".lock"
        until(lambda: (lock.exists() and lock.read_text()) or first.poll() is not None, "the first job has the lock")
        assert first.poll() is None
        result = resume(jobs, tmp_path, nproc=1, flags=["--recover-strategy", "exit"])
        assert result.code == 1
        assert "is in use by job first" in result.err + result.out
    finally:
        first.send_signal(signal.SIGINT)
        first.wait(60)


def test_a_full_disk_does_not_stop_training(jobs, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(small)], check=False)
    if mounted.returncode:
        pytest.skip("only root can make a small file system")
    try:
        result = save(jobs, small, "--width", "4096", "--step-s", "0.03", steps=30, every=10)
        assert result.err.count("No space left on device") == 1, "said once, not for every checkpoint"
        assert not result.incidents
        assert saved(small) == []
        assert not disk.unfinished(small)
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.nightly
def test_the_writer_is_killed(jobs, tmp_path):
    """It is a process of its own: what it had written is of no consequence, and the next one is written."""
    import threading

    import psutil

    killed, over = [], threading.Event()

    def kill_first_writer():
        while not over.wait(0.001):
            for p in psutil.process_iter(["cmdline"]):
                line = p.info["cmdline"] or []
                if any(part.endswith("agent/writer.py") for part in line) and str(tmp_path) in line[-1]:
                    p.kill()
                    killed.append(p.pid)
                    return

    thread = threading.Thread(target=kill_first_writer, daemon=True)
    thread.start()
    try:
        result = save(jobs, tmp_path, "--width", "30000", "--step-s", "0.03", steps=40, every=15)
    finally:
        over.set()
        thread.join()
    assert killed
    assert "the writer ended without an answer" in result.err
    assert saved(tmp_path) == [30]
    disk.verify(tmp_path / "step-00000030", disk.read_manifest(tmp_path / "step-00000030"))
    assert not disk.unfinished(tmp_path)


# ------------------------------------------------------------------------------------------------ restarts


@pytest.mark.parametrize("at", ["optimizer", *nightly("begin", "collective")])
def test_exit_goes_on_from_the_newest_checkpoint(jobs, tmp_path, at):
    args = (*STEPS, "--every", "5", "--dir", str(tmp_path), "--wait")
    flags = ["--recover-strategy", "exit"]
    result = jobs.run(SCRIPT, *args, nproc=2, chaos=[f"kind=kill,rank=0,step=18,at={at}"], flags=flags)
    assert result.code == 0, result.err[-3000:]
    assert result.policies() == ["exit"]
    whys = result.incidents[0]["why"]
    assert any("resuming from the checkpoint of step 15" in why for why in whys), whys
    assert result.incidents[0]["steps_lost"] == result.outcome["steps_lost"] == 3
    assert "resuming from the checkpoint of step 15; 3 steps lost\n" in result.err, "on screen too"
    jobs.same_state(jobs.reference(SCRIPT, *STEPS, nproc=2), result)


def test_all_ranks_killed_at_once_go_on_from_the_checkpoint(jobs, tmp_path):
    args = (*STEPS, "--every", "5", "--dir", str(tmp_path), "--wait")
    result = jobs.run(SCRIPT, *args, nproc=2, chaos=["kind=double,rank=0+1,step=18"])
    assert result.code == 0, result.err[-3000:]
    assert any("resuming from the checkpoint of step 15" in why for i in result.incidents for why in i["why"])
    jobs.same_state(jobs.reference(SCRIPT, *STEPS, nproc=2), result)


@pytest.mark.nightly
@pytest.mark.parametrize("rank", [0, 1])
def test_a_kill_around_a_save_in_place(jobs, tmp_path, rank):
    """The step after a save, with recovery in place: the checkpoint is whole or not there."""
    args = (*STEPS, "--every", "10", "--dir", str(tmp_path))
    result = jobs.run(SCRIPT, *args, nproc=2, chaos=[f"kind=kill,rank={rank},step=10,at=begin"])
    assert result.code == 0, result.err[-3000:]
    for folder in disk.folders(tmp_path):
        disk.verify(folder, disk.read_manifest(folder))
    jobs.same_state(jobs.reference(SCRIPT, *STEPS, nproc=2), result)
