"""A job that trains in two pods: up to the moment when something is done to it, and how it must come out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from acjobs_on_nodes import Jobs, a_job, training
from by_kubectl import Obj
from onecluster import ROOT

STEPS = 100
START_S = 150.0
ENDS_S = 450.0  # all its steps, on a machine that has much else to do
PACE = ("--pace", "0.1")


class Trained:
    """`digest`: where its ranks leave their last state."""

    def __init__(
        self,
        acjobs: Jobs,
        name: str,
        tmp: Path,
        policies: str,
        *,
        script: str = "paced",
        steps: int = STEPS,
        pace: tuple[str, ...] = PACE,
        flags: tuple[str, ...] = (),
        labels: Obj | None = None,
        notes: Obj | None = None,
        **run: Any,
    ) -> None:
        self.acjobs, self.name, self.steps, self.digest = acjobs, name, steps, tmp / name
        self.master, self.worker = self.pods = (f"{name}-master-0", f"{name}-worker-0")
        args = ("--steps", str(steps), *pace, "--digest", str(self.digest))
        command = training(f"tests/scripts/{script}.py", *args, flags=flags)
        notes = {"recover-strategy": policies, **(notes or {})}
        acjobs.apply(a_job(name, command, labels=labels or {"fault-scheduling": "grace"}, notes=notes, **run))

    def trains(self, step: int = 3) -> None:
        """From here on `uids` and `ranks` are what it began with."""
        self.acjobs.state(self.name, "Running")
        far = lambda: all(self.acjobs.steps(pod)[-1:] > [step] for pod in self.pods)  # noqa: E731
        self.acjobs.wait(far, f"{self.name} trains", START_S)
        self.uids, self.ranks = self.acjobs.uids(self.name), self._ranks()

    def _ranks(self) -> dict[str, dict[int, int]]:
        return {pod: self.acjobs.ranks(pod) for pod in self.pods}

    def node(self, pod: str) -> str:
        """Where a pod is."""
        return str(next(p["spec"]["nodeName"] for p in self.acjobs.pods(self.name) if p["metadata"]["name"] == pod))

    def mended(self, words: str) -> Obj:
        """Wait until the last incident is told in these words."""
        told = lambda s: words in s.get("lastIncident", "")  # noqa: E731
        return self.acjobs.until(self.name, told, f"it is mended: {words}", START_S)

    def new_pods(self) -> set[str]:
        now = self.acjobs.uids(self.name)
        return {pod for pod in self.pods if now[pod] != self.uids[pod]}

    def new_processes(self) -> set[str]:
        """Pods whose ranks are not the processes that they were."""
        now = self._ranks()
        return {pod for pod in self.pods if now[pod] != self.ranks[pod]}

    def so_far(self, pod: str) -> list[int]:
        """The steps that a pod has said to count, each once and none left out."""
        steps = self.acjobs.steps(pod)
        assert steps == list(range(steps[0], steps[-1] + 1)), f"{pod}: each step counts once"
        return steps

    def is_removed(self) -> None:
        """It need not come to its end."""
        self.acjobs.kubectl("delete", "acjob", self.name)
        self.acjobs.gone(self.name)

    def ends_well(self, each_once: bool = True) -> None:
        self.acjobs.state(self.name, "Succeeded", ENDS_S)
        for pod in self.pods if each_once else ():
            steps = self.acjobs.steps(pod)
            assert steps == list(range(steps[0], self.steps)), f"{pod}: each step counts once"
            assert "0 steps lost" in self.acjobs.kubectl("logs", pod, "--tail", "5")
        self.acjobs.kubectl("delete", "acjob", self.name)
        self.acjobs.gone(self.name)

    def ends_like(self, calm: Callable[[int], Path], each_once: bool = True) -> None:
        """Bit for bit as a run in which nothing went wrong, by the word of a script that knows nothing of onward."""
        self.ends_well(each_once)
        command = [sys.executable, str(ROOT / "examples/digest.py"), str(self.digest), str(calm(self.steps))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
