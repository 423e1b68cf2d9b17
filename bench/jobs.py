"""A training job under some launcher: started, hurt, watched through its records, ended.

Nothing here asks the launcher how it fared. What counts is what the ranks wrote: (when, step, pid) for each committed
step, appended to one file for each rank. So onward and its peers are measured by the same means.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import psutil

from onward.wire.page import Page

HERE = Path(__file__).resolve().parent
SETTLE_S = 0.3  # after the first sign of recovery, before it is judged: every rank has then written its line


@dataclass(frozen=True)
class Launcher:
    """How a peer is started. `{out}` in the command is the job's directory."""

    name: str
    command: tuple[str, ...]
    script: str = "train_plain.py"
    env: tuple[tuple[str, str], ...] = ()


class Line(NamedTuple):
    """One committed step of one rank."""

    at: float
    step: int
    pid: int
    note_ns: int  # the script's: onward's own time in the step, or the time of the step
    cpu_ns: int


@dataclass(frozen=True)
class Fault:
    """One fault and what it cost. `recover_s` is None when the bound passed first."""

    kind: str
    rank: int
    at: float
    bound_s: float
    recover_s: float | None = None
    steps_lost: int = 0
    others_s: float = 0.0  # the longest that one of the other ranks has stood meanwhile


class JobDied(Exception):
    """The job ended, or made no step, where it should have trained on."""


class Job:
    """Use as a context manager: at its end every process that was started is gone."""

    def __init__(self, launcher: Launcher, out: Path, ranks: int = 4, script: str = "", **options: object) -> None:
        self.out, self.ranks = out, ranks
        out.mkdir(parents=True)
        words = [word.format(out=out, ranks=ranks) for word in launcher.command]
        flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        command = [*words, str(HERE / "scripts" / (script or launcher.script)), "--out", str(out), *flags]
        env = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1", **dict(launcher.env)}
        self._lines: list[list[Line]] = [[] for _ in range(ranks)]
        self._read = [0] * ranks
        self.started_at = time.monotonic()
        with open(out / "launcher.log", "wb") as log:
            self._process = psutil.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, cwd=out)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ask the launcher to stop, then end whatever is left of what it had started."""
        ours = [self._process, *_children(self._process)]
        if self._process.poll() is None:
            self._process.terminate()
            for p in ours[1:]:  # a stopped rank would not hear the launcher
                _signal(p, signal.SIGCONT)
            try:
                self._process.wait(8)
            except psutil.TimeoutExpired:
                pass
        for p in ours:
            _signal(p, signal.SIGKILL)
        psutil.wait_procs(ours, timeout=5)

    # ------------------------------------------------------------------------------------------ reading

    def lines(self) -> list[list[Line]]:
        """What every rank has written so far."""
        for rank in range(self.ranks):
            try:
                with open(self.out / f"rank{rank}.steps", "rb") as f:
                    f.seek(self._read[rank])
                    data = f.read()
            except FileNotFoundError:
                continue
            whole = data[: data.rfind(b"\n") + 1]
            self._read[rank] += len(whole)
            for text in whole.decode().splitlines():
                at, *numbers = text.split()
                self._lines[rank].append(Line(float(at), *map(int, numbers)))
        return self._lines

    def top(self) -> int:
        """The last step that every rank has committed; -1 before the first."""
        return min((lines[-1].step if lines else -1) for lines in self.lines())

    def step_s(self, since: float = 0.0) -> float:
        """The median time between two steps of rank 0."""
        return median(self.step_times(since))

    def step_times(self, since: float = 0.0) -> list[float]:
        lines = [line for line in self.lines()[0] if line.at >= since]
        return [b.at - a.at for a, b in pairwise(lines) if b.pid == a.pid and b.step == a.step + 1]

    def incidents(self) -> list[dict]:
        """onward's own account."""
        files = (self.out / "logs").rglob("incidents.jsonl")
        return [json.loads(text) for file in files for text in file.read_text().splitlines()]

    # ------------------------------------------------------------------------------------------ waiting

    def wait(self, what: str, ready: Callable[[], object], bound_s: float, every_s: float = 0.03) -> None:
        """Until `ready()`; JobDied with the end of the launcher's log when it does not come to that."""
        deadline = time.monotonic() + bound_s
        while not ready():
            ended = self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                tail = (self.out / "launcher.log").read_text(errors="replace")[-1500:]
                why = f"exit code {self._process.returncode}" if ended else f"not within {bound_s:g} s"
                raise JobDied(f"waiting for {what}: {why}\n{tail}")
            time.sleep(every_s)

    def wait_steps(self, more: int, bound_s: float = 90.0) -> None:
        goal = self.top() + more
        self.wait(f"step {goal}", lambda: self.top() >= goal, bound_s)

    def wait_spares(self, wanted: int, bound_s: float = 120.0) -> float:
        """Until so many spares are parked. Returns how long that took."""
        begun = time.monotonic()
        self.wait(f"{wanted} spares", lambda: self._parked() >= wanted, bound_s, every_s=0.3)
        time.sleep(0.3 + 4 * median(self.step_times()[-10:]))  # the page says so just before they rehearse two steps
        return time.monotonic() - begun

    def _parked(self) -> int:
        ranks = {lines[-1].pid for lines in self.lines() if lines}
        found = 0
        for p in _children(self._process):
            page = _page_of(p.pid) if p.pid not in ranks else None
            if page is not None:
                found += page.get("section") > 0
                page.close()
        return found

    # ------------------------------------------------------------------------------------------ hurting

    def hurt(self, kind: str, rank: int, bound_s: float) -> Fault:
        """Strike `rank` at a random moment (kill, stop or retry) and wait until the job is past it, or the bound."""
        time.sleep(random.uniform(0, 0.5))
        pids = [lines[-1].pid for lines in self.lines()]
        at = self._strike(kind, rank, pids[rank])
        fault = Fault(kind, rank, at, bound_s)
        while time.monotonic() < at + bound_s:
            time.sleep(0.03)
            if self._first_after(fault, pids) is not None:
                time.sleep(SETTLE_S)
                done = self._judge(fault, pids)
                if done is not None:
                    return done
        return fault

    def _strike(self, kind: str, rank: int, pid: int) -> float:
        if kind != "retry":
            at = time.monotonic()
            os.kill(pid, {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[kind])
            return at
        raised = self.out / f"raised.{rank}"
        raised.unlink(missing_ok=True)
        (self.out / f"raise.{pid}").touch()
        self.wait("the error to be raised", lambda: raised.exists() and raised.read_text(), 30)
        return float(raised.read_text())

    def _first_after(self, fault: Fault, pids: list[int]) -> Line | None:
        """The first step that the struck rank committed after the fault; after a kill, in another process."""
        for line in self.lines()[fault.rank]:
            if line.at > fault.at and (fault.kind == "retry" or line.pid != pids[fault.rank]):
                return line
        return None

    def _judge(self, fault: Fault, pids: list[int]) -> Fault | None:
        """The moment at which every rank was past the next step, and how many committed steps had to be done again."""
        lines, first = self.lines(), self._first_after(fault, pids)
        assert first is not None
        replaced = [lines[rank][-1].pid != pids[rank] for rank in range(self.ranks)]
        resumed = first.step
        # A replacement may begin with the line of a step that the others have behind them, and its rank had too, but
        # for the line. They would write that of a new step at about the same time, so what is much earlier tells.
        early = (fault.at + first.at) / 2
        kept = [of_rank for rank, of_rank in enumerate(lines) if not replaced[rank]]
        if fault.kind != "retry" and any(x.step == resumed and x.at < early for of_rank in kept for x in of_rank):
            resumed += 1
        moments, lost = [], 0
        for rank, of_rank in enumerate(lines):
            for before, line in pairwise(of_rank):
                new = line.at > fault.at and line.pid != pids[rank] if replaced[rank] else line.at > early
                if new and (line.step >= resumed or all(replaced)):
                    moments.append(line.at)
                    lost = max(lost, before.step + 1 - line.step)
                    break
        if len(moments) < self.ranks:
            return None
        over = max(moments)
        stood = [
            b.at - max(a.at, fault.at)
            for rank, of_rank in enumerate(lines)
            for a, b in pairwise(of_rank)
            if rank != fault.rank and fault.at < b.at and a.at < over
        ]
        return replace(fault, recover_s=over - fault.at, steps_lost=lost, others_s=max(stood))


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _page_of(pid: int) -> Page | None:
    """The status page of a process that onward forked, seen in its memory map."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
        return next((Page(line.split()[-1]) for line in maps.splitlines() if line.endswith(".page")), None)
    except OSError:
        return None


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        pass


def median(values: list[float]) -> float:
    return statistics.median(values) if values else math.nan


def p95(values: list[float]) -> float:
    """Nearest rank: a value that was seen."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1] if values else math.nan


def launchers() -> dict[str, Launcher]:
    """onward, and torchrun in its two settings."""
    here = Path(sys.executable).parent
    torchrun = (str(here / "torchrun"), "--standalone", "--nproc_per_node", "{ranks}", "--max_restarts", "1000")
    run = (str(here / "onward"), "run", "--nproc_per_node", "{ranks}", "--log_dir", "{out}/logs")
    found = [
        Launcher("onward", run, "train_onward.py"),
        Launcher("onward, no spares", (*run, "--spares", "none"), "train_onward.py"),
        Launcher("onward, one spare", (*run, "--spares", "one"), "train_onward.py"),
        Launcher("torchrun", torchrun, env=(("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),)),
        Launcher("torchrun, stock", torchrun),
    ]
    return {launcher.name: launcher for launcher in found}


# Of each peer: the program in its environment that must be there, the command, and what it trains.
PEERS = {
    "dlrover": ("dlrover-run", ("--standalone", "--nproc_per_node={ranks}", "--max_restarts=1000"), "train_plain.py"),
    "nvrx": ("ft_launcher", ("--standalone", "--nproc-per-node={ranks}", "--max-restarts=1000"), "train_plain.py"),
    "torchft": ("torchft_lighthouse", (), "train_torchft.py"),
}


def peer(name: str, venv: Path) -> Launcher | None:
    """The launcher of a peer in its own environment; None when it is not there."""
    program, flags, script = PEERS[name]
    path = venv.absolute() / "bin" / program
    if not path.exists():
        return None
    setting = (("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"), ("PATH", f"{path.parent}:{os.environ['PATH']}"))
    command = (str(path), *flags)
    if name == "torchft":  # has no launcher of its own
        command = (str(path.with_name("python")), str(HERE / "scripts" / "start_torchft.py"), "{ranks}")
    return Launcher(name, command, script, env=setting)
