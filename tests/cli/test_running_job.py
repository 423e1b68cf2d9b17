"""`onward ps`, `status` and `chaos` against a real job: the fault is seen by the kernel, and the job survives it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import EXAMPLES, onward, start
from waiting import until

from onward.agent.control import Control, ControlFile, running_jobs
from onward.wire.messages import Injection

pytestmark = pytest.mark.torch


def entry_of(launcher: subprocess.Popen[str]) -> ControlFile | None:
    return next((job for job in running_jobs() if job.pid == launcher.pid), None)


def status_of(launcher: subprocess.Popen[str]) -> Any:
    done = onward("status", str(launcher.pid), "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """Two ranks that train until they are told to stop, each with its spare."""
    cwd = tmp_path_factory.mktemp("job")
    words = ["--nproc-per-node", "2", "--job-name", "patient", str(EXAMPLES / "ddp_min.py"), "--steps", "10000000"]
    launcher = start("run", *words, cwd=cwd)
    try:
        until(lambda: entry_of(launcher) is not None, "control.json is there")

        def ready() -> bool:
            assert launcher.poll() is None, (cwd / "err.txt").read_text()
            view = status_of(launcher)["view"]
            return view["step"] > 5 and len([r for r in view["ranks"] if r["spare_pid"]]) == 2

        until(ready, "two ranks train and have spares", 120.0)
        yield launcher
    finally:
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(60) == 128 + signal.SIGTERM


def test_ps_lists_it(job: subprocess.Popen[str]) -> None:
    done = onward("ps")
    assert done.returncode == 0
    row = next(line for line in done.stdout.splitlines() if str(job.pid) in line)
    assert row.startswith("patient")
    assert "Running" in row
    listed = json.loads(onward("ps", "-o", "json").stdout)
    assert str(job.pid) in [str(j["pid"]) for j in listed]


def test_status_shows_ranks_and_steps(job: subprocess.Popen[str]) -> None:
    found = status_of(job)
    text = onward("status", str(job.pid)).stdout
    assert re.search(r"step \d+/10000000", text)
    for rank in found["view"]["ranks"]:
        assert str(rank["pid"]) in text
    assert found["log_dir"] in text


def test_a_kill_now_is_proved_by_the_kernel_and_healed(job: subprocess.Popen[str]) -> None:
    before = status_of(job)
    pids = {r["rank"]: r["pid"] for r in before["view"]["ranks"]}
    done = onward("chaos", str(job.pid), "kind=kill,rank=1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"the kernel: pid {pids[1]} was killed by SIGKILL" in done.stdout
    assert re.search(r"incident \d+ over after \d+ ms: rank 1 killed \(SIGKILL\)", done.stdout)
    after = status_of(job)
    changed = {r["rank"] for r in after["view"]["ranks"] if r["pid"] != pids[r["rank"]]}
    assert changed == {1}
    assert after["view"]["incidents"] == before["view"]["incidents"] + 1
    assert after["incidents"][-1]["headline"] == "rank 1 killed (SIGKILL)"
    assert after["view"]["steps_lost"] == 0


def test_two_faults_for_later_steps_in_one_command(job: subprocess.Popen[str]) -> None:
    step = status_of(job)["view"]["step"]
    specs = [f"kind=exception,rank=0,step={step + 200}", f"kind=exception,rank=1,step={step + 400}"]
    done = onward("chaos", str(job.pid), *specs)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("happened: exception rank") == 2


def test_a_fault_that_does_not_come_is_said_so(job: subprocess.Popen[str]) -> None:
    done = onward("chaos", str(job.pid), "kind=kill,rank=0,step=9999999", "--wait", "0.5")
    assert done.returncode == 1
    assert "not seen yet after 0.5 s: kill rank 0 at step 9999999" in done.stdout


def test_a_wrong_fault_changes_nothing(job: subprocess.Popen[str]) -> None:
    incidents = status_of(job)["view"]["incidents"]
    done = onward("chaos", str(job.pid), "kind=kill,rank=7", "kind=kil,rank=0")
    assert "--chaos" not in done.stderr, "no flag was given"
    assert done.returncode == 2
    assert "rank 7 is not one of the 2 ranks" in done.stderr
    assert "did you mean 'kill'" in done.stderr
    assert status_of(job)["view"]["incidents"] == incidents


def test_the_agent_checks_what_comes_over_the_socket(job: subprocess.Popen[str]) -> None:
    entry = entry_of(job)
    assert entry is not None
    control = Control(entry)
    assert "unknown kind 'format-disk'" in control.inject([Injection(id=1, kind="format-disk", rank=0)]).error
    assert "rank 9 is not one of" in control.inject([Injection(id=1, kind="kill", rank=9)]).error
    assert control.status().error == ""
    control.close()


def test_somebody_without_the_token_is_turned_away(job: subprocess.Popen[str]) -> None:
    entry = entry_of(job)
    assert entry is not None
    import msgspec

    from onward.errors import WireError

    stranger = Control(msgspec.structs.replace(entry, token="00" * 32))
    with pytest.raises(WireError):
        stranger.status()
    assert status_of(job)["view"]["phase"] == "Running"


def test_the_manager_can_be_killed_by_name(job: subprocess.Popen[str]) -> None:
    done = onward("chaos", str(job.pid), "kind=kill-manager")
    assert done.returncode == 0, done.stderr
    assert re.search(r"happened: kill-manager: /proc: pid \d+ is gone", done.stdout)
    before = status_of(job)["view"]["step"]
    until(lambda: status_of(job)["view"]["step"] > before, "steps go on")


BUSY = "import time\ntime.sleep(60)\n"  # a script that is there until somebody ends it


def test_a_plain_script_can_be_sent_signals_only(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(BUSY)
    launcher = start("run", "--nproc-per-node", "2", "--no-warm", "--max-restarts", "1", "plain.py", cwd=tmp_path)
    try:
        until(lambda: entry_of(launcher) is not None, "control.json is there")
        until(lambda: all(r["stage"] == "script" for r in status_of(launcher)["view"]["ranks"]), "ranks run")
        assert len(status_of(launcher)["view"]["ranks"]) == 2
        refused = onward("chaos", str(launcher.pid), "kind=exception,rank=0")
        assert refused.returncode == 2
        assert "only kill, segv, abort, stop work there" in refused.stderr
        done = onward("chaos", str(launcher.pid), "kind=segv,rank=1")
        assert done.returncode == 0, done.stderr
        assert "was killed by SIGSEGV" in done.stdout
    finally:
        launcher.terminate()
        launcher.wait(60)


def test_killing_the_launcher_is_proved_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(BUSY)
    launcher = start("run", "--nproc-per-node", "2", "--no-warm", "plain.py", cwd=tmp_path)
    until(lambda: entry_of(launcher) is not None, "control.json is there")
    entry = entry_of(launcher)
    assert entry is not None
    run_dir = Path(entry.socket).parent
    done = onward("chaos", str(launcher.pid), "kind=kill-agent")
    assert launcher.wait(30) == -signal.SIGKILL
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"launcher pid {launcher.pid} is gone" in done.stdout
    assert onward("ps").returncode == 0
    until(lambda: not run_dir.exists(), "nothing is left of it")
