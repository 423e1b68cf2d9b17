"""How a run ends: exit codes, the banner, signals with a grace period, and nothing left behind."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from kernel import alive
from launched import ONWARD, Onward, count, kill
from waiting import until

# ------------------------------------------------------------------------------------------------ exit codes


def test_a_script_that_succeeds(onward: Onward) -> None:
    job = onward.run("-o", "json", onward.script("tell('ran', RANK)"))
    assert job.process.returncode == 0, job.err
    assert sorted(job.said("ran", 2)) == ["0", "1"]
    assert job.outcome["outcome"] == "Succeeded"
    assert job.outcome["incidents"] == []
    assert job.outcome["root_cause"] is None
    assert job.run_dirs == []


def test_files_that_a_script_leaves_open_are_written(onward: Onward) -> None:
    """As at the end of any Python. The one in Python has an end of its own to write."""
    body = """
        import ctypes, gzip
        class Log:
            def __init__(self, file): self.file = file
        plain = Log(open(__file__ + ".txt", "w"))
        packed = Log(gzip.open(__file__ + ".gz", "wt"))
        def main():
            plain.file.write("a line")
            packed.file.write("a line")
        main()
        ctypes.CDLL(None).printf(b"a line of C")
    """
    job = onward.run(script := onward.script(body), nproc=1)
    assert job.process.returncode == 0, job.err
    assert Path(f"{script}.txt").read_text() == "a line"
    assert gzip.decompress(Path(f"{script}.gz").read_bytes()) == b"a line"
    assert "a line of C" in job.out


def test_sys_exit_is_heeded(onward: Onward) -> None:
    job = onward.run(onward.script("import sys; sys.exit(0)"), nproc=1)
    assert job.process.returncode == 0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ValueError('shapes do not match')", ["exit code : 1", "ValueError: shapes do not match", "Traceback"]),
        ("import sys; sys.exit(7)", ["exit code : 7"]),
        ("import os; os.abort()", ["signal    : SIGABRT (6)"]),
        ("import sys; sys.exit('a message instead of a number')", ["exit code : 1", "a message instead of a number"]),
    ],
    ids=["raises", "exits", "aborts", "message"],
)
def test_a_script_that_fails_gets_a_banner(onward: Onward, body: str, words: list[str]) -> None:
    script = onward.script(f"if RANK == 1:\n    {body}\nwait_for('never')")
    job = onward.run("--max-restarts", "1", "--grace", "5", script)
    assert job.process.returncode == 1
    banner = job.err[job.err.index("=" * 40) :]
    for word in ["job.py FAILED", "Root Cause (first observed failure)", "rank      : 1", "limit of 1", *words]:
        assert word in banner, f"{word!r} is missing in\n{banner}"
    assert count("Root Cause", job.err) == 1, "one banner for the whole job"
    assert "rank      : 0" not in banner, "rank 0 was ended by us and is not to blame"


def test_the_traceback_starts_in_the_users_script(onward: Onward) -> None:
    job = onward.run("--max-restarts", "1", onward.script("def f():\n    1 / 0\n\nf()"), nproc=1)
    stderr = job.log("rank0.001.stderr.log")
    assert "ZeroDivisionError" in stderr
    assert "in f" in stderr
    assert "runpy" not in stderr
    assert "onward/agent" not in stderr


def test_a_wrong_command_line(tmp_path) -> None:
    p = subprocess.run([ONWARD, "run", "--nproc", "0", "nowhere.py"], capture_output=True, text=True, timeout=120)
    assert p.returncode == 2
    assert "nowhere.py" in p.stderr
    assert "Traceback" not in p.stderr


# ------------------------------------------------------------------------------------------------ signals

WAITS = """
    import signal, sys
    def on_term(*_):
        tell("term", os.getpid())
        sys.exit(0)
    signal.signal(signal.SIGTERM, on_term)
    tell("up", os.getpid())
    wait_for("never")
"""
IGNORES = """
    import signal
    signal.signal(signal.SIGTERM, lambda *_: tell("term", os.getpid()))
    tell("up", os.getpid())
    wait_for("never")
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_ends_everything_in_order(onward: Onward, number: int, code: int) -> None:
    job = onward.start("-o", "json", onward.script(WAITS))
    ranks = job.pids("up", 2)
    job.gather()
    assert job.run_dirs
    if number == signal.SIGINT:
        os.killpg(job.pid, number)  # as a terminal does: to all of the group, of which only the launcher may act
    else:
        kill(job.pid, number)
    assert job.wait() == code
    assert "the manager ended" not in job.err
    assert sorted(job.pids("term", 2)) == sorted(ranks), "each rank could clean up"
    assert job.outcome["outcome"] == f"Stopped by {signal.Signals(number).name}"
    assert job.run_dirs == []
    job.nothing_left()


def test_nohup_means_what_it_says(onward: Onward) -> None:
    """Whoever starts a job with nohup and logs out wants it to go on."""
    job = onward.start(onward.script("tell('up', os.getpid())\nwait_for('finish')"), prefix=["nohup"])
    job.pids("up", 2)
    kill(job.pid, signal.SIGHUP)
    onward.go("finish")
    assert job.wait() == 0, job.err


def test_one_that_ignores_sigterm_is_killed_after_the_grace_period(onward: Onward) -> None:
    job = onward.start("--grace", "1.5", onward.script(IGNORES))
    ranks = job.pids("up", 2)
    job.gather()
    began = time.monotonic()
    kill(job.pid, signal.SIGTERM)
    job.pids("term", 2)
    assert job.wait() == 143
    assert time.monotonic() - began >= 1.5, "not before its time"
    assert "within 1.5 s" in job.err
    assert not any(alive(p) for p in ranks)
    job.nothing_left()


def test_a_second_signal_does_not_wait(onward: Onward) -> None:
    job = onward.start("--grace", "1000", onward.script(IGNORES))
    job.pids("up", 2)
    job.gather()
    kill(job.pid, signal.SIGTERM)
    job.pids("term", 2)
    until(lambda: kill(job.pid, signal.SIGTERM) or "second signal" in job.err or job.over, "the second is noticed")
    assert job.wait() == 143
    job.nothing_left()


def test_a_stopped_rank_is_ended_too(onward: Onward) -> None:
    """SIGTERM stays pending in a stopped process until it is continued."""
    job = onward.start("--grace", "60", onward.script(WAITS))
    ranks = job.pids("up", 2)
    kill(ranks[0], signal.SIGSTOP)
    kill(job.pid, signal.SIGTERM)
    assert job.wait() == 143
    assert sorted(job.pids("term", 2)) == sorted(ranks)


def test_a_signal_while_ranks_are_being_started(onward: Onward) -> None:
    """The warm parent is still importing torch: nobody to end yet, and nothing may start afterwards."""
    job = onward.start(onward.script("tell('up', os.getpid())"), warm=True)
    until(lambda: job.warm and job.manager, "the warm parent was started")
    job.gather()
    kill(job.pid, signal.SIGTERM)
    assert job.wait() == 143
    job.nothing_left()
    assert job._told("up") == []
    assert job.run_dirs == []
