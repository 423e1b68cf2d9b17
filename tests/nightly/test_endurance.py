"""Hundreds of faults in one run, under load: the result is the same, and nothing leaks."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest
import yaml

pytestmark = [pytest.mark.nightly, pytest.mark.torch, pytest.mark.timeout(1800)]
SCRIPT = "tests/scripts/endurance.py"
MOMENTS = ("begin", "forward", "optimizer", "end")


@pytest.fixture
def load():
    """Two processes that keep two cores busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for p in busy:
        p.kill()
        p.wait()


def write(path, faults):
    path.write_text(yaml.safe_dump(faults))
    return str(path)


def test_two_hundred_retries(jobs, load, tmp_path):
    rng = random.Random(1)
    faults = [
        {"kind": "exception", "rank": rng.randrange(4), "step": 80 + 7 * i, "at": rng.choice(MOMENTS)}
        for i in range(220)
    ]
    result = jobs.run(SCRIPT, "--steps", "1650", chaos=[write(tmp_path / "faults.yaml", faults)], limit_s=1500)
    assert result.code == 0, result.err[-3000:]
    assert len(result.outcome["chaos"]) == 220
    assert len(result.incidents) > 100  # those that come within one another's recovery are one; how many is the load's
    assert set(result.policies()) == {"retry"}
    assert all(len(result.pids(r)) == 1 for r in range(4))
    jobs.same_state(jobs.reference(SCRIPT, "--steps", "1650", limit_s=1500), result)
    for rank in range(4):
        with open(f"{result.digest}.{rank}.json") as f:
            seen = json.load(f)
        early, late = seen["early"], seen["late"]
        # An operation that gloo never ends keeps its group (3 threads, some descriptors) until its timeout.
        assert late["threads"] <= early["threads"] + 12, seen
        assert late["fds"] <= early["fds"] + 24, seen
        assert late["rss_kb"] <= early["rss_kb"] * 1.25 + 50_000, seen


def test_fifty_kills(jobs, load, tmp_path):
    rng = random.Random(2)
    faults = [
        {"kind": "kill", "rank": rng.randrange(4), "step": 20 + 30 * i, "at": rng.choice([*MOMENTS, "collective"])}
        for i in range(50)
    ]
    result = jobs.run(SCRIPT, "--steps", "1600", chaos=[write(tmp_path / "faults.yaml", faults)], limit_s=1500)
    assert result.code == 0, result.err[-3000:]
    assert sum(len(result.pids(r)) - 1 for r in range(4)) >= 50
    assert result.outcome["steps_lost"] == 0
    jobs.same_state(jobs.reference(SCRIPT, "--steps", "1600", limit_s=1500), result)


def test_a_storm_of_everything(jobs, load, tmp_path):
    rng = random.Random(3)
    kinds = [
        "kill",
        "exception",
        "stop",
        "drop-connections",
        "segv",
        "endless-loop",
        "kill-manager",
        "kill-warm-parent",
    ]
    faults = []
    for i in range(40):
        kind = rng.choice(kinds)
        fault = {"kind": kind, "step": 20 + 40 * i}
        if not kind.startswith("kill-"):
            fault |= {"rank": rng.randrange(4), "at": "collective" if kind == "drop-connections" else "begin"}
        faults.append(fault)
    result = jobs.run(SCRIPT, "--steps", "1700", chaos=[write(tmp_path / "faults.yaml", faults)], limit_s=1700)
    assert result.code == 0, result.err[-3000:]
    assert result.outcome["steps_lost"] == 0
    jobs.same_state(jobs.reference(SCRIPT, "--steps", "1700", limit_s=1700), result)


def test_no_false_alarm_in_a_long_uniform_run(jobs, load):
    result = jobs.run(SCRIPT, "--steps", "5000", limit_s=1700)
    assert result.code == 0, result.err[-3000:]
    assert result.incidents == []
