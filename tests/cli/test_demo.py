"""The demo: it passes for real, and each of its claims can fail."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from commands import onward

from onward.agent.observer import Outcome
from onward.cli import demo
from onward.cli.demo import FAULTS, RANKS, Verdict, check, compare, find_examples, story
from onward.core.facts import FaultReport
from onward.core.incident import Incident
from onward.errors import UsageError
from onward.wire.view import Fired

ROOT = Path(__file__).resolve().parents[2]
EQUAL = Verdict(True, dict.fromkeys(range(RANKS), "ab" * 32), "EQUAL")


def good() -> tuple[Outcome, Outcome]:
    """A fault-free run and one with the three faults, as they should be."""
    incidents, fired = [], []
    for n, f in enumerate(FAULTS, 1):
        report = FaultReport(
            kind=f.shows_as, rank=f.rank, incarnation=1, text=f.text or "x", retryable="memory" * bool(f.text)
        )
        incidents.append(Incident(n, (report,), 50, 10.0 * n, policy="retry").closed(10.0 * n + 0.2))
        fired.append(Fired(n, f.kind, f.rank, 50, 100 + f.rank, 10.0 * n - 0.1, "the kernel says so"))
    pids = {r: (100 + r, 200 + r) if r in (1, 3) else (100 + r,) for r in range(RANKS)}
    reference = Outcome(0, "Succeeded", "", None, steps=150)
    faulty = Outcome(0, "Succeeded", "", None, steps=150, incidents=incidents, chaos=fired, pids=pids)
    return reference, faulty


def failing(reference: Outcome, faulty: Outcome, verdict: Verdict = EQUAL) -> list[str]:
    return [claim.text for claim in check(reference, faulty, 150, verdict) if not claim.holds]


def test_a_run_as_it_should_be_satisfies_every_claim() -> None:
    assert failing(*good()) == []


def test_the_story_tells_every_incident_and_digest() -> None:
    reference, faulty = good()
    text = story(reference, faulty, check(reference, faulty, 150, EQUAL), EQUAL)
    assert text.count("200 ms") == 3
    assert text.count("ab" * 32) == RANKS
    assert "training again after 300 ms" in text
    assert text.endswith("Every claim held.")


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_incident_fails(missing: int) -> None:
    reference, faulty = good()
    del faulty.incidents[missing]
    (text,) = failing(reference, faulty)
    assert f"{FAULTS[missing].kind} rank {FAULTS[missing].rank}" in text


@pytest.mark.parametrize("unproved", [0, 1, 2])
def test_a_fault_that_only_its_injector_saw_fails(unproved: int) -> None:
    reference, faulty = good()
    faulty.chaos[unproved] = replace(faulty.chaos[unproved], proof="")
    assert "nobody saw it happen" in failing(reference, faulty)[0]


def test_a_lost_step_fails() -> None:
    reference, faulty = good()
    faulty.steps_lost = 1
    assert failing(reference, faulty) == ["1 step lost"]


def test_a_run_that_is_too_short_fails() -> None:
    reference, faulty = good()
    faulty.steps = 149
    assert "both runs made 150 steps (150 and 149)" in failing(reference, faulty)


def test_a_surviving_rank_with_a_new_pid_fails() -> None:
    reference, faulty = good()
    faulty.pids[0] = (100, 300)
    (text,) = failing(reference, faulty)
    assert text.startswith("1 of 2 surviving PIDs unchanged")


def test_another_final_state_fails() -> None:
    (text,) = failing(*good(), verdict=replace(EQUAL, equal=False, text="DIFFERENT: rank 0, model/w[3]"))
    assert "DIFFERENT: rank 0, model/w[3]" in text


def test_states_that_cannot_be_compared_are_not_equal(tmp_path: Path) -> None:
    verdict = compare(find_examples(), tmp_path / "a", tmp_path / "b")
    assert not verdict.equal
    assert "no file" in verdict.text


def test_without_the_examples_it_says_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo.onward, "__file__", str(tmp_path / "site-packages" / "onward" / "__init__.py"))
    monkeypatch.setattr(demo.sys, "prefix", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="not in this installation"):
        find_examples()


def test_a_wheel_holds_all_that_is_read_at_run_time(tmp_path: Path) -> None:
    """Somebody who installs it into a training image has no checkout."""
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("needs setuptools to build a wheel")
    source = tmp_path / "source"
    for part in ("onward", "examples"):
        shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / part, source)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*build, "-w", str(tmp_path), str(source)], check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    held = {name.rpartition(".data/data/")[2] for name in zipfile.ZipFile(wheel).namelist()}
    needed = [path for path in (ROOT / "onward").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert {str(path.relative_to(ROOT)) for path in needed} <= held
    assert {f"share/onward/examples/{name}" for name in ("gpt.py", "text.py", "digest.py")} <= held


@pytest.mark.torch
def test_the_quick_demo_holds_every_claim(tmp_path: Path) -> None:
    done = onward("demo", "--quick", cwd=tmp_path, timeout_s=240.0)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every claim held." in done.stdout
    assert "SHA-256 of each rank: EQUAL" in done.stdout
    assert len(re.findall(r"^  ok  ", done.stdout, re.MULTILINE)) == 7
    assert "\x1b" not in done.stdout + done.stderr
