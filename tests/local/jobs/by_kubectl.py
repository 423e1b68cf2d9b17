"""Jobs on any cluster, by stock kubectl: what a user types, and what a test wants to know."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import machine
import pytest
from waiting import until

Obj = dict[str, Any]
LIMIT_S = 90.0


class Kubectl:
    """One namespace of a cluster."""

    def __init__(self, kubeconfig: Path, home: Path, namespace: str = "default") -> None:
        if not machine.use_kubectl():
            pytest.skip(machine.NO_KUBECTL)
        self.namespace = namespace
        self._env = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(home)}

    def kubectl(self, *words: str, stdin: str = "", check: bool = True) -> str:
        done = self.tried(*words, stdin=stdin)
        assert not check or done.returncode == 0, f"kubectl {' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def tried(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = ["kubectl", "-n", self.namespace, *words]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=120, env=self._env, input=stdin, check=False
        )

    def listed(self, *words: str) -> list[Obj]:
        found: list[Obj] = json.loads(self.kubectl("get", *words, "-o", "json"))["items"]
        return found

    def apply(self, *jobs: Obj) -> None:
        whole = {"apiVersion": "v1", "kind": "List", "items": jobs}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(whole))

    def patch(self, name: str, patch: Obj) -> None:
        self.kubectl("patch", "acjob", name, "--type=merge", "-p", json.dumps(patch))

    def wait(self, good: Callable[[], Any], what: str, timeout_s: float = LIMIT_S) -> None:
        until(good, what, timeout_s)

    def status(self, name: str) -> Obj:
        found: Obj = json.loads(self.kubectl("get", "acjob", name, "-o", "json")).get("status") or {}
        return found

    def latest(self, name: str) -> Obj:
        text = self.kubectl("get", "acjob", name, "-o", "jsonpath={.status.conditions[-1]}")
        found: Obj = json.loads(text) if text else {}
        return found

    def until(self, name: str, good: Callable[[Obj], bool], what: str, timeout_s: float = LIMIT_S) -> Obj:
        try:
            self.wait(lambda: good(self.status(name)), what, timeout_s)
        except AssertionError as e:
            logs = [self.kubectl("logs", pod, "--tail", "20", check=False) for pod in self.uids(name)]
            raise AssertionError(f"{e}\n{self.status(name)}\n{self.events(name)}\n{''.join(logs)}") from e
        return self.status(name)

    def state(self, name: str, state: str, timeout_s: float = LIMIT_S) -> Obj:
        return self.until(name, lambda s: last(s).get("type") == state, f"{name} is {state}", timeout_s)

    def pods(self, name: str) -> list[Obj]:
        return self.listed("pods", "-l", f"job-name={name}")

    def uids(self, name: str) -> dict[str, str]:
        return {p["metadata"]["name"]: p["metadata"]["uid"] for p in self.pods(name)}

    def events(self, name: str) -> list[str]:
        found = self.listed("events", "--field-selector", f"involvedObject.name={name}")
        return [f"{e['reason']}: {e['message']}" for e in found]

    def event(self, name: str, text: str, timeout_s: float = 20.0) -> None:
        self.wait(lambda: any(text in e for e in self.events(name)), f"event {text!r} of {name}", timeout_s)

    def steps(self, pod: str) -> list[int]:
        """The steps that a rank in a pod has said to count."""
        lines = [line.split() for line in self.kubectl("logs", pod, check=False).splitlines()]
        return [int(words[3]) for words in lines if words[2:3] in (["committed"], ["counted"])]

    def owned(self, name: str, kinds: Iterable[str]) -> list[Obj]:
        """What names the job as its owner."""
        found = self.listed(",".join(kinds))
        return [o for o in found if name in [r["name"] for r in o["metadata"].get("ownerReferences") or []]]

    def gone(self, name: str) -> None:
        kinds = ["pods", "services", "secrets", *(["podgroups"] if self.has_gangs() else [])]

        def look() -> bool:
            jobs = [o["metadata"]["name"] for o in self.listed("acjob")]
            return name not in jobs and not self.owned(name, kinds)

        self.wait(look, f"nothing is left of {name}")

    def has_gangs(self) -> bool:
        return "podgroups.scheduling.volcano.sh" in self.kubectl("api-resources", "-o", "name")


def last(status: Obj) -> Obj:
    conditions = status.get("conditions") or [{}]
    found: Obj = conditions[-1]
    return found


def of_pods(
    name: str, spec: Obj, workers: int = 1, labels: Obj | None = None, notes: Obj | None = None, **run: Any
) -> Obj:
    """A job of a master and some workers, with one pod spec for all."""
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
