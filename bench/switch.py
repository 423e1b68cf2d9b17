"""Hot switch: two nodes of one rank and one that stands by, on this machine; one node is called sub-healthy.

The pause is the time from the last step that counted before the swap until all may train again: nobody does meanwhile.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import psutil
from jobs import HERE, Job, Launcher, median

SICK, WELL = 1, 0


class Nodes(Job):
    """The job's first node is the launcher that `Job` knows; the second and the one that stands by are beside it."""

    def __init__(self, out: Path, **options: object) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        flags = f"--nnodes 2 --nproc_per_node 1 --spares none --sub_healthy_strategy hotSwitch --master_port {port}"
        run = (str(Path(sys.executable).parent / "onward"), "run", *flags.split(), "--master_addr", "127.0.0.1")
        self._others: list[psutil.Popen] = []
        first = Launcher("onward", (*run, "--log_dir", "{out}/logs", "--node_rank", "0"), "train_onward.py")
        super().__init__(first, out, ranks=2, **options)
        words = [str(HERE / "scripts" / "train_onward.py"), "--out", str(out)]
        words += [text for name, value in options.items() for text in (f"--{name}", str(value))]
        env = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
        for name, place in (("second", ("--node_rank", "1")), ("standby", ("--standby",))):
            command = [*run, *place, "--log_dir", f"{out}/{name}", *words]
            with open(out / f"{name}.log", "wb") as log:
                self._others.append(
                    psutil.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, cwd=out)
                )

    def end(self) -> None:
        for p in self._others:
            p.terminate()
        super().end()
        for p in self._others:
            try:
                p.wait(10)
            except psutil.TimeoutExpired:
                p.kill()

    def events(self) -> str:
        return "".join(path.read_text() for path in self.out.glob("logs/**/events.log"))

    def report(self) -> None:
        words = ["fault", "report", "--node", str(SICK), "--level", "sub-health", "--code", "bench"]
        subprocess.run(
            [sys.executable, "-m", "onward.cli.main", *words, str(self._process.pid)],
            check=True,
            capture_output=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(HERE.parent)},
        )


def measure(out: Path, **options: object) -> dict:
    """One switch of a job with this model."""
    with Nodes(out, **options) as job:
        job.wait_steps(8, 300)
        calm = job.step_s()
        job.report()
        old = job.lines()[SICK][-1].pid
        job.wait("the switch", lambda: job.lines()[SICK][-1].pid != old, 120)
        job.wait_steps(4, 60)
        lines = job.lines()
    first = next(line for line in lines[SICK] if line.pid != old)
    gaps = {b.step: b.at - a.at for a, b in pairwise(lines[WELL])}
    beside = [s for step, s in gaps.items() if step < first.step][-10:]
    marks = dict(next(i for i in job.incidents() if i["policy"] == "hot-switch")["marks"])
    before = max(line.at for of_rank in lines for line in of_rank if line.at < marks["form"])
    words = ("stand", "switch", "going on", "follow")
    return {
        "step_s": calm,
        "step_beside_s": median(beside),
        "longest_beside_s": max(beside),
        "gap_s": max(gaps.get(first.step + i, 0.0) for i in (-1, 0, 1)),
        "pause_s": marks["form"] - before,
        "stages": {name: at - marks["detect"] for name, at in marks.items()},
        "followed": not any("state for rank" in text for text in job.events().splitlines()),
        "why": [text for text in job.events().splitlines() if any(word in text for word in words)],
    }

