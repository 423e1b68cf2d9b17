"""Jobs on several nodes, each an agent of its own on this machine. A node is lost with its agent and its ranks."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import psutil
from jobs import HERE, Fault, Job, JobDied, Launcher, _children, _signal, median

ONWARD = str(Path(sys.executable).parent / "onward")
ELASTIC = ("--recover_strategy", "recover-in-place,recover,elastic-training", "--wait_reschedule_timeout", "1")
WAITED_S = 1.0  # of that, before the world shrinks
KINDS = {"kill": 4, "retry": 3, "stop": 1, "node": 2}  # of a storm, with weights
WARM_S = 5.0  # one that stands by imports torch


class Nodes(Job):
    """The job's first node is the launcher that `Job` knows, and is never lost; all others are beside it."""

    def __init__(
        self,
        out: Path,
        nodes: int,
        nproc: int = 1,
        nnodes: str = "",
        standbys: int = 1,
        flags: tuple[str, ...] = (),
        script: str = "train_onward.py",
        **options: object,
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        meet = f"--nnodes {nnodes or nodes} --nproc_per_node {nproc} --spares none --master_port {port}"
        self._run = (ONWARD, "run", *meet.split(), "--master_addr", "127.0.0.1", *flags)
        self._others: list[psutil.Popen] = []
        first = Launcher("onward", (*self._run, "--log_dir", "{out}/logs", "--node_rank", "0"), script)
        super().__init__(first, out, ranks=nodes * nproc, **options)
        self._script = [str(HERE / "scripts" / script), "--out", str(out)]
        self._script += [text for name, value in options.items() for text in (f"--{name}", str(value))]
        for number in range(1, nodes):
            self._start(f"node{number}", "--node_rank", str(number))
        for _ in range(standbys):
            self.stand_by()

    def stand_by(self) -> Path:
        """One more node, for the place of a lost one. Returns its log."""
        return self._start(f"standby{len(self._others)}", "--standby")

    def _start(self, name: str, *place: str) -> Path:
        path = self.out / f"{name}.log"
        env = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
        command = [*self._run, *place, "--log_dir", f"{self.out}/{name}", *self._script]
        with open(path, "wb") as log:
            p = psutil.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, cwd=self.out)
        self._others.append(p)
        return path

    def wait_warm(self, log: Path) -> None:
        self.wait("a node that stands by", lambda: "standing by" in log.read_text(), 60)
        time.sleep(WARM_S)

    def end(self) -> None:
        whole = [q for p in self._others for q in (p, *_children(p))]
        for p in self._others:
            _signal(p, signal.SIGTERM)
        super().end()
        psutil.wait_procs(self._others, timeout=10)
        for p in whole:
            _signal(p, signal.SIGKILL)

    def report(self, node: int) -> None:
        """Call a node sub-healthy."""
        words = ["fault", "report", "--node", str(node), "--level", "sub-health", "--code", "bench"]
        subprocess.run(
            [sys.executable, "-m", "onward.cli.main", *words, str(self._process.pid)],
            check=True,
            capture_output=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(HERE.parent)},
        )

    def _strike(self, kind: str, rank: int, pid: int) -> float:
        if kind != "node":
            return super()._strike(kind, rank, pid)
        lost = next(p for p in self._others if pid in [q.pid for q in _children(p)])
        whole = [lost, *_children(lost)]
        at = time.monotonic()
        for p in whole:
            _signal(p, signal.SIGKILL)
        self._others.remove(lost)
        lost.wait(10)
        return at

    def pause_of(self, policy: str, nth: int = 0) -> tuple[float, dict[str, float]]:
        """From the last step that counted before a planned pause until all may train again; and its marks."""
        marks = dict([i for i in self.incidents() if i["policy"] == policy][nth]["marks"])
        before = max(line.at for of_rank in self.lines() for line in of_rank if line.at < marks["form"])
        return marks["form"] - before, marks


# ---------------------------------------------------------------------------------------------------- recover


def lost_nodes(out: Path, losses: int, **options: object) -> tuple[list[Fault], list[dict], float]:
    """A node of two is killed, again and again, with another standing by: (faults, incidents, a calm step)."""
    faults = []
    with Nodes(out, nodes=2, nproc=2, **options) as job:
        job.wait_steps(8, 300)
        log = out / "standby1.log"
        for _ in range(losses):
            job.wait_warm(log)
            job.wait_steps(8, 120)
            calm = job.step_s(time.monotonic() - 5)
            faults.append(job.hurt("node", 2, 90))
            log = job.stand_by()
        job.wait_steps(3, 60)
        return faults, job.incidents(), calm


# ---------------------------------------------------------------------------------------------------- elastic


def shrink_and_grow(out: Path, **options: object) -> dict:
    """Four nodes of one rank; one is lost and nobody takes its place; later somebody comes."""
    with Nodes(out, 4, nnodes="1:4", standbys=0, flags=ELASTIC, script="train_elastic.py", **options) as job:
        job.wait_steps(8, 300)
        calm = job.step_s()
        at = job._strike("node", 3, job.lines()[3][-1].pid)
        job.wait("the others go on", lambda: "going on with" in events(job), 120)
        marks = dict(job.incidents()[-1]["marks"]) if job.incidents() else {}
        job.wait("steps without it", lambda: _after(job, range(3), at + WAITED_S) >= 8, 120)
        shrink = max(b.at - a.at for a, b in pairwise(job.lines()[0]) if b.at > at)
        few = job.step_s(time.monotonic() - 3)
        back = time.monotonic()
        job.stand_by()
        job.wait("it is back", lambda: job.lines()[3][-1].at > back, 180)
        job.wait_steps(4, 60)
        job.wait("the account of it", lambda: len(job.incidents()) > 1, 30)
        grow, _ = job.pause_of("elastic-training", -1)
        return {
            "step_s": calm,
            "step_shrunk_s": few,
            "shrink_s": shrink,
            "waited_s": WAITED_S,
            "shrink_marks": marks,
            "grow_s": grow,
        }


def _after(job: Job, ranks: range, at: float) -> int:
    """Steps that each of these ranks has committed since."""
    return min(sum(line.at > at for line in job.lines()[rank]) for rank in ranks)


# ---------------------------------------------------------------------------------------------------- dump


def dump(job: Job, directory: Path) -> dict:
    """Kill a rank of a job whose only remedy is to save what survives: until the checkpoint has its name."""
    job.wait_steps(6, 300)
    os.kill(job.lines()[1][-1].pid, signal.SIGKILL)
    job.wait("the checkpoint", lambda: "is saved in" in events(job), 120)
    (folder,) = directory.glob("step-*")
    size = sum(path.stat().st_size for path in folder.iterdir())
    killed, agreed, named = (_said_at(job, text) for text in ("saving a surviving copy", "saving step", "is saved in"))
    return {
        "bytes": size,
        "dump_s": named - agreed,
        "whole_s": named - killed,
        "disk_s": disk_s(directory, size),
    }


def _said_at(job: Job, text: str) -> float:
    """When an event was written down, in seconds of the day's clock."""
    line = next(line for line in events(job).splitlines() if text in line)
    return datetime.fromisoformat(line[:23]).timestamp()


def events(job: Job) -> str:
    """What onward's first node has written about itself."""
    return "".join(path.read_text() for path in job.out.glob("logs/**/events.log"))


def disk_s(directory: Path, size: int, times: int = 3) -> float:
    """How long the disk itself takes for so many bytes: one file, written and synced."""
    data, seconds = os.urandom(1 << 20) * (size // (1 << 20) + 1), []
    for number in range(times):
        path = directory / f"raw{number}"
        begun = time.monotonic()
        with open(path, "wb", buffering=0) as f:
            rest = memoryview(data)[:size]
            while rest:
                rest = rest[f.write(rest) :]
            os.fsync(f.fileno())
        seconds.append(time.monotonic() - begun)
        path.unlink()
    return median(seconds)


# ---------------------------------------------------------------------------------------------------- storm


@dataclass(frozen=True)
class Gust:
    """One fault of a storm, so long after its beginning."""

    after_s: float
    kind: str
    rank: int


def trace(seed: int, lasts_s: float, mean_s: float, ranks: int) -> list[Gust]:
    """Exponential: faults know nothing of each other. The first is a lost node, so that there is one."""
    draw, at, found = random.Random(seed), 0.0, []
    while (at := at + draw.expovariate(1 / mean_s)) < lasts_s:
        kind = draw.choices(list(KINDS), list(KINDS.values()))[0] if found else "node"
        found.append(Gust(at, kind, draw.randrange(ranks // 2, ranks) if kind == "node" else draw.randrange(ranks)))
    return found


def weather(job: Job, gusts: list[Gust], lasts_s: float) -> dict:
    """Let the storm pass. Goodput: steps that count, each as long as one usually is, of the time that it took."""
    begun, first, struck = time.monotonic(), job.top(), 0
    for gust in gusts:
        time.sleep(max(0.0, begun + gust.after_s - time.monotonic()))
        struck += _strike_if_there(job, gust)
        if gust.kind == "node" and isinstance(job, Nodes):
            job.stand_by()
    time.sleep(max(0.0, begun + lasts_s - time.monotonic()))
    took, steps = time.monotonic() - begun, job.top() - first
    usual = median(job.step_times(begun))
    return {"faults": struck, "steps": steps, "step_s": usual, "took_s": took, "goodput": steps * usual / took}


def _strike_if_there(job: Job, gust: Gust) -> bool:
    """A rank that is being replaced cannot be struck: wait for its next process, for a while."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            job._strike(gust.kind, gust.rank, job.lines()[gust.rank][-1].pid)
            return True
        except (ProcessLookupError, StopIteration, JobDied):
            time.sleep(0.1)
    return False
