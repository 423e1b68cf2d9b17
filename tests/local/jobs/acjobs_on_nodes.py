"""AscendJobs on the cluster of this machine, seen with stock kubectl."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onecluster import ROOT, OneCluster

from onward.agent.control import Control, running_jobs

Obj = dict[str, Any]
ANYWHERE = [{"key": "dedicated", "operator": "Exists"}]  # the third node of the tests is tainted


class Jobs:
    """What a user types, and what a test wants to know."""

    def __init__(self, cluster: OneCluster, home: Path) -> None:
        if shutil.which("kubectl") is None:
            pytest.skip("NO KUBECTL ON PATH")
        self.cluster = cluster
        self._env = {**os.environ, "KUBECONFIG": str(cluster.state / "kubeconfig"), "HOME": str(home)}

    def kubectl(self, *words: str, stdin: str = "", check: bool = True) -> str:
        done = subprocess.run(
            ["kubectl", *words], capture_output=True, text=True, timeout=120, env=self._env, input=stdin, check=False
        )
        assert not check or done.returncode == 0, f"kubectl {' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def apply(self, job: Obj) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps(job))

    def status(self, name: str) -> Obj:
        found: Obj = json.loads(self.kubectl("get", "acjob", name, "-o", "json")).get("status") or {}
        return found

    def latest(self, name: str) -> Obj:
        text = self.kubectl("get", "acjob", name, "-o", "jsonpath={.status.conditions[-1]}")
        found: Obj = json.loads(text) if text else {}
        return found

    def until(self, name: str, good: Callable[[Obj], bool], what: str, timeout_s: float = 90.0) -> Obj:
        try:
            self.cluster.until(lambda: good(self.status(name)), what, timeout_s)
        except AssertionError as e:
            logs = [self.kubectl("logs", pod, "--tail", "20", check=False) for pod in self.uids(name)]
            raise AssertionError(f"{e}\n{self.status(name)}\n{self.events(name)}\n{''.join(logs)}") from e
        return self.status(name)

    def state(self, name: str, state: str, timeout_s: float = 90.0) -> Obj:
        return self.until(name, lambda s: last(s).get("type") == state, f"{name} is {state}", timeout_s)

    def pods(self, name: str) -> list[Obj]:
        found: list[Obj] = json.loads(self.kubectl("get", "pods", "-l", f"job-name={name}", "-o", "json"))["items"]
        return found

    def uids(self, name: str) -> dict[str, str]:
        return {p["metadata"]["name"]: p["metadata"]["uid"] for p in self.pods(name)}

    def events(self, name: str) -> list[str]:
        return self.cluster.events(name)

    def ranks(self, pod: str) -> dict[int, int]:
        """rank -> pid of the ranks that train in a pod."""
        pids = self.cluster.pids(pod)
        for entry in running_jobs():
            if entry.pid in pids:
                control = Control(entry)
                view = control.status().view
                control.close()
                return {r.rank: r.pid for r in view.ranks} if view is not None else {}
        return {}

    def manager(self, pod: str) -> int:
        """The pid of the manager that a pod hosts."""
        for pid in self.cluster.pids(pod):
            if b"onward.manager" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        raise AssertionError(f"{pod} hosts no manager")

    def steps(self, pod: str) -> list[int]:
        """The steps that a rank in a pod has said to count."""
        lines = [line.split() for line in self.kubectl("logs", pod, check=False).splitlines()]
        return [int(words[3]) for words in lines if words[2:3] in (["committed"], ["counted"])]

    def gone(self, name: str) -> None:
        def look() -> bool:
            kinds = "acjob,pods,services,secrets,podgroups" if self._has_gangs() else "acjob,pods,services,secrets"
            left = json.loads(self.kubectl("get", kinds, "-o", "json"))["items"]
            owned = [o for o in left if name in [r["name"] for r in o["metadata"].get("ownerReferences") or []]]
            return not owned and name not in [o["metadata"]["name"] for o in left if o["kind"] == "AscendJob"]

        self.cluster.until(look, f"nothing is left of {name}")

    def _has_gangs(self) -> bool:
        return "podgroups" in self.kubectl("api-resources", "-o", "name")


def last(status: Obj) -> Obj:
    conditions = status.get("conditions") or [{}]
    found: Obj = conditions[-1]
    return found


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
    template = {"spec": spec}
    return {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "metadata": {"name": name, "labels": {"framework": "pytorch", **(labels or {})}, "annotations": notes or {}},
        "spec": {
            "runPolicy": run,
            "replicaSpecs": {"Master": {"template": template}, "Worker": {"replicas": workers, "template": template}},
        },
    }


def training(script: str, *args: str, flags: tuple[str, ...] = ()) -> list[str]:
    """A command that trains, one rank to a pod."""
    known = ["--spares", "none", "--hang-floor", "20", "--grace", "3"]
    return [sys.executable, "-m", "onward.cli.main", "run", *known, *flags, str(ROOT / script), *args]
