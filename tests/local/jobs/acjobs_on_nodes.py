"""AscendJobs on the cluster of this machine: what kubectl shows, and the processes behind it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from by_kubectl import Kubectl, Obj, of_pods
from onecluster import ROOT, OneCluster

from onward.agent.chaos import parse_chaos
from onward.agent.control import Control, running_jobs

ANYWHERE = [{"key": "dedicated", "operator": "Exists"}]  # the third node of the tests is tainted

SCRIPT = """
import os, pathlib, sys, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "at", os.environ["MASTER_ADDR"], flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)  # runs until the test says that it is done
"""


class Jobs(Kubectl):
    """Here the processes of pods can be seen, and killed."""

    def __init__(self, cluster: OneCluster, home: Path) -> None:
        super().__init__(cluster.state / "kubeconfig", home)
        self.cluster, self.home = cluster, home

    def wait(self, good: Callable[[], Any], what: str, timeout_s: float = 90.0) -> None:
        self.cluster.until(good, what, timeout_s)

    def ranks(self, pod: str) -> dict[int, int]:
        """rank -> pid of the ranks that train in a pod."""
        with self._control(pod) as control:
            view = control.status().view if control is not None else None
        return {r.rank: r.pid for r in view.ranks} if view is not None else {}

    def inject(self, pod: str, spec: str) -> None:
        """What `onward chaos` does to a running job, by the agent in this pod."""
        with self._control(pod) as control:
            assert control is not None, f"nothing trains in {pod}"
            control.inject(list(parse_chaos([spec], 2)))

    @contextlib.contextmanager
    def _control(self, pod: str) -> Iterator[Control | None]:
        pids = self.cluster.pids(pod)
        entry = next((job for job in running_jobs() if job.pid in pids), None)
        control = Control(entry) if entry is not None else None
        try:
            yield control
        finally:
            if control is not None:
                control.close()

    def manager(self, pod: str) -> int:
        """The pid of the manager that a pod hosts."""
        for pid in self.cluster.pids(pod):
            if b"onward.manager" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        raise AssertionError(f"{pod} hosts no manager")


def a_job(
    name: str, command: list[str], workers: int = 1, labels: Obj | None = None, notes: Obj | None = None, **run: Any
) -> Obj:
    container = {
        "name": "ascend",
        "image": "any",
        "command": command,
        "env": [{"name": "PYTHONPATH", "value": str(ROOT)}, {"name": "ONWARD_TEST_POD", "value": "1"}],
    }
    apart = {
        "labelSelector": {"matchExpressions": [{"key": "job-name", "operator": "In", "values": [name]}]},
        "topologyKey": "kubernetes.io/hostname",
    }
    spec = {
        "containers": [container],
        "terminationGracePeriodSeconds": 5,
        "tolerations": ANYWHERE,
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
    }
    return of_pods(name, spec, workers, labels, notes, **run)


def training(script: str, *args: str, flags: tuple[str, ...] = ()) -> list[str]:
    """A command that trains, one rank to a pod."""
    known = ["--spares", "none", "--hang-floor", "20", "--grace", "3"]
    return [sys.executable, "-m", "onward.cli.main", "run", *known, *flags, str(ROOT / script), *args]


def waiting_for(path: object) -> list[str]:
    return [sys.executable, "-S", "-E", "-c", SCRIPT, str(path)]
