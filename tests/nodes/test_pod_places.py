"""What a pod's environment tells `onward run`: the pods of a job meet, and one that replaces the leader joins them.

Each pod is an `onward run` on a loopback address of its own, with the environment that the operator would give it.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from several import Node
from waiting import until

from onward.api import ascendjob, pods
from onward.api.env import Surroundings
from onward.api.job import Job
from onward.local.node.environment import build

SCRIPT = ["tests/scripts/paced.py", "--steps", "60", "--pace", "0.05"]


class Pods:
    """The pods of one job of two."""

    def __init__(self, tmp: Path) -> None:
        self._tmp = tmp
        self._net = f"127.{os.getpid() % 200 + 20}.9"
        self.started: list[Node] = []
        container = {"name": "ascend", "image": "any"}
        role = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
        job = ascendjob.read(
            {
                "metadata": {
                    "name": "gpt",
                    "namespace": "default",
                    "uid": "u",
                    "labels": {"framework": "pytorch"},
                    "annotations": {"recover-strategy": "recover"},
                },
                "spec": {"replicaSpecs": {"Master": role, "Worker": role}},
            }
        )
        assert isinstance(job, Job)
        self.job = job

    def address(self, number: int) -> str:
        return f"{self._net}.{number}"

    def start(self, role: str, number: int, wave: int = 0, managers: tuple[str, ...] = ()) -> Node:
        around = Surroundings(leader_address=self.address(1), others=managers, joins=bool(managers), token_in_env=True)
        pod = pods.pod(self.job, role, 0, wave=wave, around=around)
        facts = {"podIP": self.address(number), "hostIP": self.address(number)}
        variables = build(pod, pod["spec"]["containers"][0], {}, facts, self._lookup)
        name = f"{pod['metadata']['name']}-{wave}"
        command = [sys.executable, "-m", "onward.cli.main", "run", "--spares", "none", "-o", "json"]
        command += ["--hang-floor", "10", "--log-dir", str(self._tmp / f"logs-{name}"), *SCRIPT]
        own = [f"{key}={value}" for key, value in variables.items() if key.startswith("ONWARD_")]
        self.started.append(Node(name, ["env", *own, *command], self._tmp))
        return self.started[-1]

    def _lookup(self, kind: str, name: str) -> dict[str, Any] | None:
        token = base64.b64encode(b"a secret of the job's own").decode()
        return {"kind": kind, "data": {"token": token}} if name == pods.secret_name(self.job) else None


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Pods]:
    found = Pods(tmp_path)
    yield found
    for node in found.started:
        node.kill()


@pytest.mark.torch
@pytest.mark.nightly
def test_the_leaders_pod_is_replaced_and_the_job_goes_on(made: Pods) -> None:
    leader, worker = made.start("Master", 1), made.start("Worker", 2)
    until(lambda: leader.said.count("committed") > 5, "both train")
    leader.kill()
    again = made.start("Master", 3, wave=1, managers=(f"{made.address(2)}:9601",))
    assert [worker.wait(), again.wait()] == [0, 0], worker.said + again.said
    (incident,) = worker.outcome["incidents"]
    assert incident["policy"] == "recover"
    assert len(worker.pids(1)) == 1, "the worker's process is the one it began with"
