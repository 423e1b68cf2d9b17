"""/dev/shm full, tiny or read-only: another place is taken, or a sentence says what is wrong. In a mount namespace."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched import Launched, Onward
from waiting import until

from onward.agent import control
from onward.checkpoints import memory


@functools.cache
def private_mounts() -> bool:
    probe = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
    return subprocess.run(["unshare", "-m", "sh", "-c", probe], capture_output=True, check=False).returncode == 0


def with_shm(options: str, then: str = "true") -> list[str]:
    """In front of a command: run it where /dev/shm is a new tmpfs."""
    if shutil.which("unshare") is None or not private_mounts():
        pytest.skip("needs the right to mount a tmpfs (root, or user namespaces)")
    return ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o {options} tmpfs /dev/shm && {then} && exec "$@"', "sh"]


@pytest.fixture
def short() -> Iterator[Path]:
    """The path of a unix socket has to be short."""
    path = Path(tempfile.mkdtemp(prefix="shm-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


TELLS = "tell('socket', os.environ['ONWARD_SOCKET'])"


@pytest.mark.parametrize("options", ["size=1m", "size=64m,ro", "size=64m,nr_inodes=1"], ids=["tiny", "ro", "no inodes"])
def test_the_directory_for_temporary_files_is_taken_instead(onward: Onward, short: Path, options: str) -> None:
    job = onward.run(onward.script(TELLS), nproc=1, prefix=with_shm(options), env={"TMPDIR": str(short)})
    assert job.process.returncode == 0, job.err
    assert job.said("socket", 1)[0].startswith(f"{short}/onward-")
    assert list(short.glob("onward-*")) == [], "and left clean"


def test_with_room_it_is_shared_memory(onward: Onward, short: Path) -> None:
    job = onward.run(onward.script(TELLS), nproc=1, prefix=with_shm("size=64m"), env={"TMPDIR": str(short)})
    assert job.process.returncode == 0, job.err
    assert job.said("socket", 1)[0].startswith("/dev/shm/onward-")


def told_clearly(job: Launched, *words: str) -> None:
    assert job.process.returncode == 1
    assert "Traceback" not in job.err
    for word in words:
        assert word in job.err, job.err


def test_no_place_at_all(onward: Onward) -> None:
    prefix = with_shm("size=1m", "mkdir /dev/shm/tmp")
    job = onward.run(onward.script(TELLS), nproc=1, prefix=prefix, env={"TMPDIR": "/dev/shm/tmp"})
    told_clearly(job, "/dev/shm", "16 MB free", "TMPDIR")


def test_a_directory_whose_name_is_too_long_for_a_socket(onward: Onward) -> None:
    long = onward.tmp / ("x" * 100)
    long.mkdir()
    job = onward.run(onward.script(TELLS), nproc=1, prefix=with_shm("size=1m"), env={"TMPDIR": str(long)})
    told_clearly(job, "at most 80 letters")


def test_no_directory_for_temporary_files_is_no_trouble_when_the_logs_have_theirs(onward: Onward) -> None:
    """tempfile finds none where everything is read-only: as in hardened containers."""
    each = "test ! -d $d || { mount --bind $d $d && mount -o remount,bind,ro $d; }"
    readonly = f"for d in /tmp /var/tmp /usr/tmp; do {each}; done"
    logs = Path("/dev/shm/logs")
    prefix = with_shm("size=64m", f"{readonly} && mkdir {logs} && cd /proc")
    job = onward.run("--log-dir", str(logs), "--no-python", "/bin/echo", "started", nproc=1, prefix=prefix)
    assert job.process.returncode == 0, job.err
    assert "started" in job.out


def test_shared_memory_that_fills_up_later(onward: Onward, short: Path) -> None:
    """A new process finds no room for its status page: it is said so, and the job ends instead of dying of SIGBUS."""
    script = """
        with open("/dev/shm/ballast", "wb") as f:
            try:
                while True:
                    f.write(b"x" * 65536)
            except OSError:
                pass
        os._exit(3)
    """
    prefix = with_shm("size=32m")
    job = onward.run(onward.script(script), nproc=1, prefix=prefix, env={"TMPDIR": str(short)})
    told_clearly(job, "could not start a process", "No space left on device", "Root Cause")


LARGE = """
    import sys
    import torch
    import onward

    run = onward.init()
    state = torch.zeros(3 << 20)  # 12 MB, and two copies of it are kept
    mine = {"large": torch.zeros(3 << 20)}
    run.protect(state=state, local=mine)
    run.checkpoint(every=2, dir=sys.argv[1])
    for step in run.steps(5):
        with step:
            state += 1.0
            mine["large"] += 1.0
    run_dir = os.path.dirname(os.environ["ONWARD_SOCKET"])
    tell("copies", sorted(os.listdir(os.path.join(run_dir, "elsewhere"))))
"""


@pytest.mark.torch
def test_a_state_larger_than_shared_memory_is_saved_all_the_same(onward: Onward, short: Path) -> None:
    """A pod whose template says nothing has 64 MB."""
    saved = onward.tmp / "saved"
    job = onward.run(onward.script(LARGE), str(saved), nproc=1, prefix=with_shm("size=20m"), env={"TMPDIR": str(short)})
    assert job.process.returncode == 0, job.err
    (copies,) = job.said("copies")
    assert "shared." in copies, "one copy at least did not fit"
    assert ".slot" in copies, "nor did local state"
    assert "no checkpoint" not in job.err + job.out
    assert job.out.count("which is slower") + job.err.count("which is slower") == 1, job.out + job.err
    assert list(saved.glob("step-*/manifest.json"))
    assert list(short.glob("onward-*")) == [], "and left clean"


def test_what_a_killed_launcher_kept_elsewhere_is_given_back(onward: Onward, short: Path) -> None:
    job = onward.start(
        onward.script("tell('up', 1); wait_for('never')"), prefix=with_shm("size=64m"), env={"TMPDIR": str(short)}
    )
    job.said("up", 2)
    (elsewhere,) = short.glob("onward-*")
    job.process.kill()
    until(lambda: not elsewhere.exists(), "the guard has removed it")


def test_the_next_job_removes_what_nobody_could_remove(onward: Onward, short: Path) -> None:
    """A container ends as a whole; the shared memory of its pod stays, and so does a volume for temporary files."""
    dead = short / "onward-dead"
    dead.mkdir(mode=0o700)
    lead = short / "lead"
    entry = control.ControlFile(pid=1, job="j", socket="", token="", log_dir="", started_at=0.0)
    os.close(control.publish(dead, entry))
    lead.mkdir()
    memory.lead_elsewhere(dead, lead)
    job = onward.run(onward.script(TELLS), nproc=1, env={"TMPDIR": str(short)})
    assert job.process.returncode == 0, job.err
    assert not dead.exists()
    assert not lead.exists()
