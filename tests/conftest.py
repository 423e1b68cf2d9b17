"""Real jobs with real torch: start them, read their own account, and compare what they computed."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import machine
import psutil
import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, help="simulate this many seeds (tests/simulation)")
    parser.addoption("--seed", type=int, help="simulate this one seed again: -k replay --seed N (tests/simulation)")
    parser.addoption("--once-more", action="store_true", help="with --lf: what failed, if that is not too much")


ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 240
UNSTEADY = 4  # more than so many failures are no accident


def pytest_configure(config: pytest.Config) -> None:
    machine.use_kubectl()
    if config.getoption("once_more"):
        failed = config.cache.get("cache/lastfailed", {})
        if not 0 < len(failed) <= UNSTEADY:
            raise pytest.UsageError(f"{len(failed)} tests have failed; only 1 to {UNSTEADY} are run once more")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for line in machine.missing():
        terminalreporter.write_line(line, red=True, bold=True)
    if config.getoption("once_more"):
        for report in terminalreporter.stats.get("passed", []):
            terminalreporter.write_line(f"UNSTEADY {report.nodeid}: failed among the others, passed by itself")


@dataclass
class Result:
    """What a finished run said and left behind."""

    code: int
    out: str
    err: str
    outcome: dict[str, Any] = field(default_factory=dict)
    digest: str = ""

    @property
    def incidents(self) -> list[dict[str, Any]]:
        return self.outcome["incidents"]

    def pids(self, rank: int) -> list[int]:
        return self.outcome["pids"][str(rank)]

    def policies(self) -> list[str]:
        return [i["policy"] for i in self.incidents]


def _stacks(pid: int) -> str:
    """Where every process of a job is."""
    told = []
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        dump = [str(Path(sys.executable).with_name("py-spy")), "dump", "--pid", str(process.pid)]
        done = subprocess.run(dump, capture_output=True, text=True, timeout=30, check=False)
        told.append(done.stdout or f"{process.pid}: {done.stderr}")
    return "\n".join(told)


class Jobs:
    """Starts jobs, and keeps one fault-free reference of each kind for the whole session."""

    def __init__(self, tmp: Path) -> None:
        self._tmp = tmp
        self._numbers = itertools.count(1)
        self._references: dict[tuple[str, int, tuple[str, ...], tuple[str, ...]], Result] = {}

    def run(
        self,
        script: str,
        *args: str,
        nproc: int = 4,
        chaos: list[str] | None = None,
        flags: list[str] | None = None,
        limit_s: float = LIMIT_S,
    ) -> Result:
        number = next(self._numbers)
        digest, logs = str(self._tmp / f"run{number}"), self._tmp / f"logs{number}"
        command = [sys.executable, "-m", "onward.cli.main", "run", "-o", "json", "--nproc-per-node", str(nproc)]
        # A test machine may be so busy that a rank stands still for a second: that is no fault, and no test of ours.
        command += ["--hang-floor", "4", "--log-dir", str(logs), *(flags or [])]
        for spec in chaos or []:
            command += ["--chaos", spec]
        command += [str(ROOT / script), *args, "--digest", digest]
        p = self._finished(command, limit_s, logs)
        try:
            outcome = json.loads(p.stdout[p.stdout.index("\n{") + 1 if "\n{" in p.stdout else p.stdout.index("{") :])
        except ValueError:
            outcome = {}
        return Result(p.returncode, p.stdout, p.stderr, outcome, digest)

    def _finished(self, command: list[str], limit_s: float, logs: Path) -> subprocess.CompletedProcess[str]:
        """A job that does not end is asked what it does before it is ended: the story would be lost with it."""
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as p:
            try:
                out, err = p.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                stacks = _stacks(p.pid)
                p.kill()
                _, err = p.communicate()
                told = "".join(f"{f.name}: {f.read_text()[-2000:]}\n" for f in sorted(logs.glob("*/*.log")))
                pytest.fail(f"the job did not end within {limit_s:g} s\n{err[-2000:]}\n{told}\n{stacks}")
        return subprocess.CompletedProcess(command, p.returncode, out, err)

    def reference(
        self, script: str, *args: str, nproc: int = 4, flags: tuple[str, ...] = (), limit_s: float = LIMIT_S
    ) -> Result:
        key = (script, nproc, args, flags)
        if key not in self._references:
            result = self.run(script, *args, nproc=nproc, flags=[*flags], limit_s=limit_s)
            assert result.code == 0, result.err
            assert not result.incidents
            self._references[key] = result
        return self._references[key]

    def beside_reference(self, script: str, *args: str, nproc: int = 4, **options: Any) -> tuple[Result, Result]:
        """The reference, and a run that is to come to the same state; both at once, where there is no reference yet."""
        with ThreadPoolExecutor(1) as aside:
            reference = aside.submit(self.reference, script, *args, nproc=nproc)
            result = self.run(script, *args, nproc=nproc, **options)
            return reference.result(), result

    def same_state(self, a: Result, b: Result) -> None:
        """Every tensor, number and random stream of every rank is equal, by a script that knows nothing of onward."""
        p = subprocess.run(
            [sys.executable, str(ROOT / "examples/digest.py"), a.digest, b.digest],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={k: v for k, v in os.environ.items() if not k.startswith("ONWARD")},
        )
        assert p.returncode == 0, p.stdout[-2000:] + p.stderr


@pytest.fixture(scope="session")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    return Jobs(tmp_path_factory.mktemp("jobs"))
