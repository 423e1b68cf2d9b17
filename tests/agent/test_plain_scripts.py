"""Scripts that never heard of onward: all ranks restart together, as under torchrun, and nothing of before is lost."""

from __future__ import annotations

import shutil

from kernel import alive
from launched import Onward, count, kill

HINT = "no rank has called onward.init()"


def test_a_failure_restarts_all_ranks_and_the_logs_of_before_are_kept(onward: Onward) -> None:
    script = """
        import sys
        tell("up%d" % COUNT, os.getpid())
        tell("incarnation", os.environ["ONWARD_INCARNATION"])
        print("rank", RANK, "attempt", COUNT)
        print("rank", RANK, "complains", COUNT, file=sys.stderr)
        tell("spoke%d" % COUNT, RANK)
        meet("spoke%d" % COUNT, 2)
        if RANK == 1 and COUNT < 2:
            sys.exit(10 + COUNT)
        if COUNT < 2:
            wait_for("never")
    """
    job = onward.run("-o", "json", onward.script(script))
    assert job.process.returncode == 0, job.err
    pids = [job.pids(f"up{n}", 2) for n in range(3)]
    assert len({p for attempt in pids for p in attempt}) == 6
    assert not any(alive(p) for attempt in pids for p in attempt)
    assert sorted(job.said("incarnation")) == ["1", "1", "2", "2", "3", "3"]
    assert count(HINT, job.err) == 1, "said once, not at every restart"
    assert [(i["policy"], i["mended"], i["steps_lost"]) for i in job.outcome["incidents"]] == [("exit", True, None)] * 2
    assert count(r"incident \d over after \d+ ms: rank 1 exited", job.err) == 2
    assert job.err.count("restarting all 2 ranks; the script runs from its beginning") == 2
    assert [i["faults"][0]["text"] for i in job.outcome["incidents"]] == ["exit code 10", "exit code 11"]

    for stream, word in (("stdout", "attempt"), ("stderr", "complains")):
        for rank in (0, 1):
            names = job.log_files(f"rank{rank}.*.{stream}.log")
            assert len(names) == 3, "a file for each rank, incarnation and stream"
            assert [job.log(name) for name in names] == [f"rank {rank} {word} {n}\n" for n in range(3)]
    for n in range(3):
        assert f"[rank 0] rank 0 attempt {n}\n" in job.err, "and all was on the screen (with JSON: on stderr)"


def test_the_others_may_save_something_before_they_start_again(onward: Onward) -> None:
    """As under torchrun: SIGTERM first. One that takes too long over it is not waited for."""
    script = """
        import signal, sys
        def save(*_):
            tell("saved", RANK)
            if RANK == 0:
                sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        tell("up%d" % COUNT, RANK)
        meet("up%d" % COUNT, 3)
        if COUNT == 0:
            if RANK == 2:
                sys.exit(3)
            wait_for("never")
    """
    job = onward.run(onward.script(script), nproc=3)
    assert job.process.returncode == 0, job.err
    assert sorted(job.said("saved", 2)) == ["0", "1"]


def test_logs_that_somebody_has_removed_do_not_keep_a_rank_from_starting(onward: Onward) -> None:
    script = """
        tell("up%d" % COUNT, os.getpid())
        print("attempt", COUNT)
        wait_for("finish")
    """
    job = onward.start(onward.script(script), nproc=1)
    pid = job.pids("up0")[0]
    shutil.rmtree(job.logs)
    kill(pid)
    job.pids("up1")
    onward.go("finish")
    assert job.wait() == 0, job.err
    assert "[rank 0] attempt 1\n" in job.out


def test_max_restarts_is_honoured(onward: Onward) -> None:
    job = onward.run("--max_restarts", "2", onward.script("tell('up', COUNT)\nraise SystemExit(20 + COUNT)"), nproc=1)
    assert job.process.returncode == 1
    assert job.said("up") == ["0", "1", "2"]
    assert "limit of 2 restarts is used up" in job.err
    assert count("Root Cause", job.err) == 1


def test_three_identical_failures_end_it(onward: Onward) -> None:
    job = onward.run("-o", "json", onward.script("tell('up', COUNT)\nraise ValueError('again')"), nproc=1)
    assert HINT not in job.err, "no library would have helped"
    assert "restarting the only rank" in job.err
    assert job.process.returncode == 1
    assert job.said("up") == ["0", "1", "2"]
    assert job.outcome["outcome"] == "Failed"
    assert "3 times" in job.outcome["reason"]
    root = job.outcome["root_cause"]
    assert (root["rank"], root["exit_code"], root["error"]) == (0, 1, "ValueError: again")
    assert "ValueError: again" in root["traceback"]


def test_all_ranks_that_die_at_once_are_noticed(onward: Onward) -> None:
    """Exit statuses that come together are all seen: none is lost to whoever else reaps."""
    script = """
        tell("up%d" % COUNT, os.getpid())
        meet("up%d" % COUNT, 6)
        if COUNT < 2:
            os._exit(30 + COUNT)
    """
    job = onward.run("-o", "json", onward.script(script), nproc=6)
    assert job.process.returncode == 0, job.err
    assert [len(job.said(f"up{n}")) for n in range(3)] == [6, 6, 6]
