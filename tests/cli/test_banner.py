"""The failure banner: what it says, for made-up outcomes and for real processes that fail."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import onward

from onward.agent.observer import Ended, Outcome
from onward.cli.banner import banner, hint, root_cause
from onward.core.facts import FaultReport
from onward.core.incident import Incident

TRACEBACK = ["Traceback (most recent call last):", '  File "x.py", line 3, in <module>', "    f()", "ValueError: no"]


def fault(kind: str = "exit", text: str = "exit code 1", **more: Any) -> FaultReport:
    return FaultReport(kind=kind, rank=2, incarnation=1, text=text, **more)


def failed(f: FaultReport, code: int = 1, log: tuple[str, ...] = (), **more: Any) -> Outcome:
    ended = Ended(2, 0, 1, 4711, code, 1_700_000_000.0, "/logs/out", "/logs/err", **more)
    return Outcome(
        exit_code=1,
        phase="Failed",
        reason="the same failure 3 times with no progress",
        root_cause=f,
        script="x.py",
        host="node-7",
        log_dir="/logs",
        root_process=ended,
        root_log=log,
    )


# What is known


def test_a_run_that_did_not_fail_has_no_root_cause() -> None:
    assert root_cause(Outcome(exit_code=0, phase="Succeeded", reason="", root_cause=None)) is None


def test_everything_torchrun_says_is_there_and_more() -> None:
    text = banner(failed(fault()))
    assert "Root Cause (first observed failure)" in text
    for part in (
        "2023-11-",
        "node-7",
        "2 (local rank 0)",
        "4711",
        "exit code : 1",
        "/logs/err",
        "Given up",
        "What to do",
    ):
        assert part in text


def test_a_signal_is_named() -> None:
    root = root_cause(failed(fault("signal", "SIGKILL"), code=-9))
    assert root is not None
    assert (root["signal"], root["exit_code"]) == ("SIGKILL (9)", None)
    assert "OOM killer" in root["hint"]


def test_a_signal_we_sent_ourselves_is_not_the_cause() -> None:
    root = root_cause(failed(fault("exception", "ValueError: no", traceback="T"), code=-15, killed=True))
    assert root is not None
    assert root["signal"] is None
    assert "outside this job" not in root["hint"]


def test_the_traceback_is_the_ranks_own_if_it_reported_one() -> None:
    root = root_cause(
        failed(fault("exception", "ValueError: a", traceback="mine"), log=tuple(TRACEBACK), traceback="file")
    )
    assert root is not None
    assert (root["error"], root["traceback"]) == ("ValueError: a", "mine")


def test_else_it_comes_from_the_error_file() -> None:
    root = root_cause(failed(fault(), log=tuple(TRACEBACK), error="KeyError: 'k'", traceback="file"))
    assert root is not None
    assert (root["error"], root["traceback"]) == ("KeyError: 'k'", "file")


def test_else_from_the_log_where_the_last_one_counts() -> None:
    log = ("noise", TRACEBACK[0], "  earlier", "OSError: old", "noise", *TRACEBACK)
    root = root_cause(failed(fault(), log=log))
    assert root is not None
    assert root["error"] == "ValueError: no"
    assert root["traceback"].splitlines() == TRACEBACK


def test_else_the_last_lines_of_the_log_are_shown() -> None:
    root = root_cause(failed(fault("exit", "exit code 3"), code=3, log=tuple(f"line {n}" for n in range(100))))
    assert root is not None
    assert root["traceback_from"] == "last lines of its log"
    assert root["traceback"].splitlines()[-1] == "line 99"


def test_a_script_that_cannot_be_read_has_an_error_and_no_traceback() -> None:
    log = ('  File "x.py", line 1', "    def f(:", "          ^", "SyntaxError: invalid syntax")
    root = root_cause(failed(fault(), log=log))
    assert root is not None
    assert (root["error"], root["traceback_from"]) == ("SyntaxError: invalid syntax", "last lines of its log")
    assert "cannot read the script" in root["hint"]


def test_a_process_that_could_not_be_started_left_no_log_but_the_reason_is_somewhere() -> None:
    root = root_cause(replace(failed(fault("exit", "exit code 71")), root_process=None, root_log=()))
    assert root is not None
    assert "could not be started; events.log says why" in root["error"]
    assert "ulimit -u" in root["hint"]
    elsewhere = root_cause(replace(failed(fault("exit", "exit code 3")), root_process=None, root_log=()))
    assert elsewhere is not None
    assert "could not be started" not in elsewhere["error"], "it was on another node"


def test_a_rank_that_ended_early_is_told_as_such() -> None:
    text = banner(failed(fault("exit", "exit code 0", step=11, others=12), code=0))
    assert "rank 2 ended its script after 11 steps, while the others had done 12 and went on" in text
    assert "all ranks must run the same number of steps" in text


def test_how_often_it_was_started_and_what_limits_that() -> None:
    outcome = failed(fault())
    outcome.pids = {2: (10, 11, 4711)}
    assert "Started    : 3 times, rank 2; --max-restarts N" in banner(outcome)
    assert "Started" not in banner(failed(fault()))


def test_a_node_that_gave_up_by_itself_says_why() -> None:
    outcome = Outcome(exit_code=2, phase="Failed", reason="refused", root_cause=None, script="x.py", log_dir="/logs")
    assert "x.py FAILED" in banner(outcome)
    assert "Given up   : refused" in banner(outcome)


def test_a_hang_shows_what_the_rank_was_doing() -> None:
    outcome = failed(fault("hang", "rank 2 is behind"), code=-9, killed=True)
    outcome.incidents = [
        Incident(1, (fault("hang"),), 3, 0.0, evidence="stacks of pid 4711, by py-spy:\n  wait (x.py:3)")
    ]
    root = root_cause(outcome)
    assert root is not None
    assert "wait (x.py:3)" in root["traceback"]
    assert "run.section" in root["hint"]


def test_a_very_long_traceback_is_cut_in_the_middle() -> None:
    root = root_cause(failed(fault("exception", "E", traceback="\n".join(f"line {n}" for n in range(1000)))))
    assert root is not None
    lines = root["traceback"].splitlines()
    assert len(lines) < 100
    assert (lines[0], lines[-1]) == ("line 0", "line 999")


@pytest.mark.parametrize(
    ("code", "error", "log", "says"),
    [
        (1, "ModuleNotFoundError: No module named 'flash'", "", "install what is missing"),
        (2, "", "usage: x.py [-h]\nx.py: error: unrecognized", "refused its arguments"),
        (1, "OSError: [Errno 28] No space left on device", "", "df -h"),
        (1, "torch.OutOfMemoryError: CUDA out of memory", "", "batch size"),
        (-11, "", "", "PYTHONFAULTHANDLER"),
        (-7, "", "", "/dev/shm"),
        (127, "", "", "could not be executed"),
    ],
)
def test_common_cases_get_a_hint(code: int, error: str, log: str, says: str) -> None:
    assert says in hint(fault(), code, error, log)


def test_the_kernels_own_word_beats_the_guess() -> None:
    assert "acted in this container" in hint(fault("signal", "SIGKILL"), -9, "", "", oom_killed=True)


# Real processes. Cold starts: these scripts need no torch, and its import would be most of the time.


def run_failing(tmp_path: Path, source: str, *flags: str) -> Any:
    (tmp_path / "bad.py").write_text(source)
    return onward("run", "--nproc-per-node", "2", "--no-warm", "--log-dir", "logs", *flags, "bad.py", cwd=tmp_path)


def test_sigkill_at_startup(tmp_path: Path) -> None:
    done = run_failing(tmp_path, "import os\nif os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\nwhile True: pass\n")
    assert done.returncode == 1
    assert "bad.py FAILED" in done.stderr
    assert re.search(r"rank +: 1 \(local rank 1\)", done.stderr)
    assert re.search(r"signal +: SIGKILL \(9\)", done.stderr)
    assert "OOM killer" in done.stderr


def test_a_script_that_raises_at_import(tmp_path: Path) -> None:
    done = run_failing(tmp_path, "import no_such_module_anywhere\n")
    assert done.returncode == 1
    assert re.search(r"error +: ModuleNotFoundError: No module named 'no_such_module_anywhere'", done.stderr)
    assert 'File "' in done.stderr.split("Root Cause")[1]
    assert "install what is missing" in done.stderr
    log = re.search(r"^  log +: (.+)$", done.stderr, re.MULTILINE)
    assert log is not None
    assert "no_such_module_anywhere" in Path(tmp_path, log[1]).read_text()


def test_an_exit_code(tmp_path: Path) -> None:
    done = run_failing(tmp_path, "import sys\nprint('leaving early')\nsys.exit(7)\n")
    assert done.returncode == 1
    assert re.search(r"exit code +: 7", done.stderr)
    assert "leaving early" in done.stderr.split("Root Cause")[1]


def test_what_record_wrote_is_used(tmp_path: Path) -> None:
    source = (
        "import json, os, sys\n"
        "json.dump({'message': {'message': 'KeyError: deep', 'extraInfo': {'py_callstack': 'frame of the user'}}},"
        " open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w'))\nsys.exit(1)\n"
    )
    done = run_failing(tmp_path, source)
    assert re.search(r"error +: KeyError: deep", done.stderr)
    assert "frame of the user" in done.stderr


def test_a_missing_script_is_bad_usage_and_starts_nothing(tmp_path: Path) -> None:
    done = onward("run", "--nproc-per-node", "2", "trian.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "trian.py is not a file" in done.stderr
    assert done.stdout == ""


def test_json_is_one_object_on_stdout(tmp_path: Path) -> None:
    done = run_failing(tmp_path, "print('out')\nraise RuntimeError('for json')\n", "-o", "json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert (found["outcome"], found["exit_code"]) == ("Failed", 1)
    assert found["root_cause"]["error"] == "RuntimeError: for json"
    assert found["root_cause"]["rank"] in (0, 1)
    assert found["incidents"][0]["timeline_ms"].keys() >= {"detect"}
    assert 0.0 <= found["goodput"] <= 1.0
    assert re.search(r"^\[rank [01]\] out$", done.stderr, re.MULTILINE), "whichever came so far before the other failed"


def test_json_of_a_run_that_succeeds(tmp_path: Path) -> None:
    done = run_failing(tmp_path, "print('fine')\n", "-o", "json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert (found["outcome"], found["exit_code"], found["root_cause"]) == ("Succeeded", 0, None)
    assert sorted(found["pids"]) == ["0", "1"]


def test_a_second_run_into_the_same_log_directory_is_a_new_job(tmp_path: Path) -> None:
    assert run_failing(tmp_path, "raise SystemExit(5)\n").returncode == 1
    assert run_failing(tmp_path, "print('mended')\n").returncode == 0
    assert len(list((tmp_path / "logs").iterdir())) == 2


def test_every_note_is_in_the_events_log(tmp_path: Path) -> None:
    run_failing(tmp_path, "raise SystemExit(5)\n", "--quiet")
    (events,) = (tmp_path / "logs").glob("*/events.log")
    assert "incident 1 over" in events.read_text()


def test_quiet_leaves_the_ranks_and_the_errors(tmp_path: Path) -> None:
    done = run_failing(tmp_path, "print('mine', flush=True)\nraise SystemExit(5)\n", "--quiet")
    assert re.search(r"^\[rank [01]\] mine$", done.stdout, re.MULTILINE), "the other may be ended before it says a word"
    assert "Root Cause" in done.stderr
    assert "incident 1" not in done.stderr.split("=====")[0]


def test_every_problem_of_a_fault_is_listed(tmp_path: Path) -> None:
    (tmp_path / "ok.py").write_text("pass\n")
    words = ["--chaos", "kind=kil,rank=9,stepp=3", "--chaos", "rank=x,kind=kill,step=soon", "ok.py"]
    done = onward("run", "--nproc-per-node", "2", *words, cwd=tmp_path)
    assert done.returncode == 2
    for part in (
        "did you mean 'kill'",
        "rank 9 is not one of",
        "'stepp'; did you mean 'step'",
        "rank='x'",
        "step='soon'",
    ):
        assert part in done.stderr
