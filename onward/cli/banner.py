"""The failure banner: which rank failed first, how, where it is written down, and what to do next."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from typing import Any

from onward.agent.logs import last_error, last_traceback
from onward.agent.observer import NO_PROCESS, Ended, Outcome
from onward.core.facts import FaultReport
from onward.core.words import counted

WIDTH = 88
TRACEBACK_LINES = 60
LOG_LINES = 20
OTHERS = 8  # further failures listed


def root_cause(outcome: Outcome, oom_killed: bool = False) -> dict[str, Any] | None:
    """All that is known about the first failure, for people and for JSON; None when nothing failed."""
    fault, ended = outcome.root_cause, outcome.root_process
    if fault is None:
        return None
    error, trace, kind = _explanation(outcome, fault, ended)
    code = ended.exit_code if ended is not None and not ended.killed else None
    at = fault.at if fault.at > 1e9 else ended.at if ended is not None else time.time()
    return {
        "time": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)),
        "host": outcome.host,
        "rank": fault.rank,
        "local_rank": ended.local_rank if ended is not None else None,
        "incarnation": fault.incarnation,
        "pid": ended.pid if ended is not None else None,
        "step": fault.step if fault.step >= 0 else None,
        "fault": fault.kind,
        "exit_code": code if code is not None and code >= 0 else None,
        "signal": _signal(code) if code is not None and code < 0 else None,
        "error": error,
        "traceback": trace,
        "traceback_from": kind,
        "log": _log(ended) if ended is not None else None,
        "reason": outcome.reason,
        "started": len(outcome.pids.get(fault.rank, ())) or outcome.attempts,
        "hint": hint(fault, code, error, "\n".join(outcome.root_log), oom_killed),
        "others": [_other(e) for e in outcome.others[:OTHERS]],
    }


def banner(outcome: Outcome, oom_killed: bool = False) -> str:
    """The same as text; of a node that gave up by itself, why."""
    root = root_cause(outcome, oom_killed)
    if root is None:
        lines = ["=" * WIDTH, f"{outcome.script} FAILED", "-" * WIDTH, f"Given up   : {outcome.reason}"]
        return "\n".join([*lines, f"All logs   : {outcome.log_dir}", "=" * WIDTH])
    local = f" (local rank {root['local_rank']})" if root["local_rank"] is not None else ""
    pid = f"{root['pid']} (incarnation {root['incarnation']})" if root["pid"] else ""  # of another node, or none
    rows: list[tuple[str, Any]] = [
        ("time", root["time"]),
        ("host", root["host"]),
        ("rank", f"{root['rank']}{local}"),
        ("pid", pid),
        ("step", root["step"]),
        ("exit code", root["exit_code"]),
        ("signal", root["signal"]),
        ("error", root["error"]),
        ("log", root["log"]),
    ]
    lines = ["=" * WIDTH, f"{outcome.script} FAILED", "-" * WIDTH, "Root Cause (first observed failure):"]
    lines += [f"  {name:<10}: {_indented(str(value))}" for name, value in rows if value not in (None, "")]
    if root["traceback"]:
        lines.append(f"  {root['traceback_from']}:")
        lines += [f"    {line}" for line in root["traceback"].splitlines()]
    if root["others"]:
        lines.append("Other failures of the same attempt:")
        lines += [f"  {text}" for text in root["others"]]
        left_out = len(outcome.others) - len(root["others"])
        lines += [f"  and {left_out} more"] if left_out > 0 else []
    lines += ["-" * WIDTH, f"Given up   : {root['reason']}"]
    if root["started"] > 1:
        limit = "--max-restarts N ends a job after N restarts of processes, for whatever reason"
        lines.append(f"Started    : {root['started']} times, rank {root['rank']}; {limit}")
    if root["hint"]:
        lines.append(f"What to do : {root['hint']}")
    lines += [f"All logs   : {outcome.log_dir}", "=" * WIDTH]
    return "\n".join(lines)


def _indented(text: str) -> str:
    return text.replace("\n", "\n" + " " * 14)


def _signal(code: int) -> str:
    try:
        return f"{signal.Signals(-code).name} ({-code})"
    except ValueError:
        return f"signal {-code}"


def _log(e: Ended) -> str:
    """The log that says something."""
    try:
        return e.err if os.path.getsize(e.err) or not os.path.getsize(e.out) else e.out
    except OSError:
        return e.err


def _other(e: Ended) -> str:
    how = _signal(e.exit_code) if e.exit_code < 0 else f"exit code {e.exit_code}"
    when = time.strftime("%H:%M:%S", time.localtime(e.at)) + f".{int(e.at % 1 * 1000):03d}"
    return f"rank {e.rank} (pid {e.pid}): {how} at {when}, log {e.err}"


def _explanation(outcome: Outcome, fault: FaultReport, ended: Ended | None) -> tuple[str, str, str]:
    """(error, traceback, where that comes from): the rank's own report, its error file, or its log."""
    if fault.traceback:
        return fault.text, _cut(fault.traceback.splitlines()), "traceback"
    if ended is not None and (ended.error or ended.traceback):
        return ended.error or fault.text, _cut(ended.traceback.splitlines()), "traceback (from its error file)"
    evidence = next((i.evidence for i in reversed(outcome.incidents) if i.evidence), "")
    if fault.kind in ("hang", "stall") and evidence:
        return f"hung: {fault.text}", _cut(evidence.splitlines()), "what it was doing"
    log = list(outcome.root_log)
    trace = last_traceback(log)
    if trace and not fault.early:
        return last_error(log) or fault.text, _cut(trace), "traceback (from its log)"
    if _never_was(fault, ended):
        return NEVER_WAS, "", ""
    known = fault.text if fault.kind not in ("exit", "signal") else last_error(log)
    text = _ended_early(fault) if fault.early else _ended_inside(fault) if fault.inside else known
    return text, "\n".join(log[-LOG_LINES:]), "last lines of its log"


def _never_was(fault: FaultReport, ended: Ended | None) -> bool:
    return ended is None and fault.kind == "exit" and fault.text == f"exit code {NO_PROCESS}"


def _ended_early(fault: FaultReport) -> str:
    when = f"after {counted(fault.step, 'step')}" if fault.step > 0 else "before its first step ended"
    theirs = f"had done {fault.others} and went on" if fault.others >= 0 else "went on"
    return f"rank {fault.rank} ended its script {when}, while the others {theirs}"


def _ended_inside(fault: FaultReport) -> str:
    return f"rank {fault.rank} ended its script in step {fault.step}, which did not count and had to be run again"


def _cut(lines: list[str]) -> str:
    if len(lines) > TRACEBACK_LINES:
        half = TRACEBACK_LINES // 2
        lines = [*lines[:half], f"... {len(lines) - 2 * half} lines ...", *lines[-half:]]
    return "\n".join(lines)


# What to do, by what the error says. The first pattern that is found wins.
NEVER_WAS = "its process could not be started; events.log says why"
_BY_TEXT = (
    (NEVER_WAS, "give the machine what is missing there: processes (ulimit -u), memory, or room for logs"),
    (
        r"ModuleNotFoundError|ImportError",
        f"install what is missing into the Python that runs the ranks ({sys.executable}), or check PYTHONPATH",
    ),
    (r"SyntaxError|IndentationError", f"this Python ({sys.version.split()[0]}) cannot read the script"),
    (r"CUDA out of memory|OutOfMemoryError", "lower the batch size or the number of ranks per device"),
    (r"\bMemoryError\b", "the process ran out of memory: lower the batch size or the number of ranks"),
    (r"Address already in use|EADDRINUSE", "another process has the port: leave out --master-port, or give a free one"),
    (r"No space left on device", "a file system is full: look with df -h, at /dev/shm and the log directory too"),
    (r"FileNotFoundError", "check the path; ranks run in the directory that onward run was started in"),
    (r"^usage: |: error: ", "the script refused its arguments: what follows the name of the script is for the script"),
)
_BY_SIGNAL = {
    9: "nothing in this job sent SIGKILL; most often it is the kernel's OOM killer: look with"
    " dmesg -T | grep -i -E 'oom|killed process', then lower the batch size or the number of ranks",
    11: "native code crashed: run again with PYTHONFAULTHANDLER=1 to see the Python frame in the log",
    6: "native code gave up: the reason is most often in the last lines of the log",
    7: "most often a full /dev/shm: look with df -h /dev/shm, or give the container more shared memory",
    4: "an instruction this CPU does not have: a package was built for another machine",
    15: "something outside this job ended the process",
}
_SAME_STEPS = (
    "all ranks must run the same number of steps: look for a break, return or exit that only some of them come to, "
    "and for data that is longer on some than on others"
)
_OOM_KILLED = "the kernel's OOM killer acted in this container during the run: give it more memory, or use less"


def hint(fault: FaultReport, code: int | None, error: str, log: str, oom_killed: bool = False) -> str:
    """What to try next; empty when there is nothing better to say than the error itself."""
    if fault.kind in ("hang", "stall"):
        return "see above what it was doing; a part that is slow for a good reason belongs into run.section(...)"
    if fault.early:
        return _SAME_STEPS
    if fault.inside:
        return "leave the loop after a step only `if step.committed`"
    for pattern, advice in _BY_TEXT:
        if re.search(pattern, error, re.MULTILINE) or (code == 2 and re.search(pattern, log, re.MULTILINE)):
            return advice
    if code is not None and code < 0:
        return _OOM_KILLED if oom_killed and code == -signal.SIGKILL else _BY_SIGNAL.get(-code, "")
    if fault.kind == "exception":
        return "mend the script and start again; an error that goes away by itself can be named with --retry-on"
    if error:
        return "the error is in the script: mend it and start again"
    if code in (126, 127):
        return "the program could not be executed: check its name, its permissions and its first line"
    return "look at one rank alone: onward run --nproc-per-node 1 ..."


