"""Finding running jobs, and telling them from what dead ones left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onward.agent import control
from onward.agent.control import ControlFile, publish, running_jobs
from onward.cli.jobs import choose
from onward.cli.main import main
from onward.errors import UsageError


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(control, "bases", lambda: [tmp_path])
    return tmp_path


def entry(name: str = "gpt", pid: int = 4711, started_at: float = 1.0) -> ControlFile:
    return ControlFile(pid=pid, job=name, socket="/nowhere", token="00", log_dir="/logs", started_at=started_at)


def job(base: Path, folder: str = "a", **facts: object) -> tuple[Path, int]:
    run_dir = base / f"onward-{folder}"
    run_dir.mkdir(mode=0o700)
    return run_dir, publish(run_dir, entry(**facts))  # type: ignore[arg-type]


def test_a_published_job_is_found_and_is_for_its_owner_only(base: Path) -> None:
    run_dir, fd = job(base)
    assert [j.job for j in running_jobs()] == ["gpt"]
    assert (run_dir / "control.json").stat().st_mode & 0o777 == 0o600
    os.close(fd)


def test_what_a_dead_launcher_left_behind_is_removed(base: Path) -> None:
    run_dir = base / "onward-dead"
    run_dir.mkdir(mode=0o700)
    code = (
        "import os, sys; from pathlib import Path; from onward.agent.control import ControlFile, publish;"
        "entry = ControlFile(pid=os.getpid(), job='x', socket='', token='', log_dir='', started_at=1.0);"
        "publish(Path(sys.argv[1]), entry);"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(run_dir)], cwd=Path(__file__).parents[2], check=False)
    assert (run_dir / "control.json").exists()
    assert running_jobs() == []
    assert not run_dir.exists()


def test_looking_twice_does_not_harm_a_live_one(base: Path) -> None:
    run_dir, fd = job(base)
    for _ in range(3):
        assert len(running_jobs()) == 1
    assert run_dir.exists()
    os.close(fd)


def test_a_directory_that_others_can_open_is_not_trusted(base: Path) -> None:
    run_dir, fd = job(base)
    run_dir.chmod(0o755)
    assert running_jobs() == []
    assert run_dir.exists()
    os.close(fd)


def test_links_foreign_files_and_half_made_directories_are_left_alone(base: Path) -> None:
    real, fd = job(base)
    (base / "onward-link").symlink_to(real)
    (base / "onward-empty").mkdir(mode=0o700)
    (base / "onward-junk").mkdir(mode=0o700)
    (base / "onward-junk" / "control.json").write_text('{"pid": "many"}')
    (base / "onward-file").write_text("x")
    assert len(running_jobs()) == 1
    assert (base / "onward-empty").exists()
    assert (base / "onward-junk").exists()
    os.close(fd)


def test_no_job_is_said_so() -> None:
    with pytest.raises(UsageError, match="no job of yours is running"):
        choose(None)


def test_several_jobs_and_none_named_are_listed(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fds = [job(base, "a", name="gpt", pid=11)[1], job(base, "b", name="mnist", pid=12, started_at=2.0)[1]]
    assert main(["chaos", "kind=kill,rank=0"]) == 2
    text = capsys.readouterr().err
    assert "several jobs are running" in text
    assert "gpt (pid 11" in text
    assert "mnist (pid 12" in text
    assert choose("mnist").pid == 12
    assert choose("11").job == "gpt"
    for fd in fds:
        os.close(fd)


def test_an_unknown_name_gets_a_did_you_mean(base: Path) -> None:
    _, fd = job(base, name="mnist")
    with pytest.raises(UsageError, match="did you mean 'mnist'"):
        choose("minst")
    os.close(fd)


def test_two_jobs_of_one_name_are_told_apart_by_pid(base: Path) -> None:
    fds = [job(base, "a", pid=11)[1], job(base, "b", pid=12)[1]]
    with pytest.raises(UsageError, match="several jobs are called gpt"):
        choose("gpt")
    assert choose("12").pid == 12
    for fd in fds:
        os.close(fd)


def test_a_launcher_that_does_not_answer_is_listed_as_such(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, fd = job(base)
    assert main(["ps"]) == 0
    assert "does not answer" in capsys.readouterr().out
    assert main(["status"]) == 1
    assert "does not answer" in capsys.readouterr().err
    os.close(fd)


def test_chaos_without_a_fault_or_with_two_jobs_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "one", "two"]) == 2
    text = capsys.readouterr().err
    assert "more than one job named: one, two" in text
    assert "no fault given" in text
