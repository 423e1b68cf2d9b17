"""Gangs on a real cluster, as users of Volcano see them: stock kubectl, pods that run, and schedulers that die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import machine
import pytest
import yaml
from kernel import alive
from onecluster import ROOT, OneCluster

pytestmark = pytest.mark.skipif(not machine.use_kubectl(), reason=machine.NO_KUBECTL)


class Kubectl:
    def __init__(self, cluster: OneCluster, place: Path) -> None:
        self.cluster, self._place = cluster, place
        self._groups: list[str] = []

    def __call__(self, *words: str, stdin: str = "") -> str:
        command = ["kubectl", "--kubeconfig", str(self.cluster.state / "kubeconfig"), *words]
        p = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        assert p.returncode == 0, p.stderr
        return p.stdout

    def gang(
        self,
        name: str,
        count: int,
        scheduler: str = "volcano",
        minimum: int | None = None,
        memory: str = "9Gi",
        **more: Any,
    ) -> None:
        """Pods of 9 of a node's 16 GiB, so one for each node; they end when `end` is called."""
        spec = {"minMember": count if minimum is None else minimum}
        api = "scheduling.volcano.sh/v1beta1"
        made: list[dict[str, Any]] = [{"apiVersion": api, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}]
        wait = f"until [ -e {self._place / name} ]; do sleep 0.1; done"
        for i in range(count):
            notes = {"scheduling.k8s.io/group-name": name, "volcano.sh/task-spec": "worker"}
            container = {"name": "c", "image": "none", "command": ["sh", "-c", wait]}
            container |= {"env": [{"name": "ONWARD_TEST_POD", "value": "1"}]}
            container |= {"resources": {"requests": {"memory": memory}}}
            pod = {
                "schedulerName": scheduler,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
                "tolerations": [{"key": "dedicated", "operator": "Exists"}],
                "containers": [container],
                **more,
            }
            metadata = {"name": f"{name}-{i}", "annotations": notes}
            made.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod})
        self._groups.append(name)
        self("apply", "-f", "-", stdin=yaml.safe_dump_all(made))

    def end(self, name: str) -> None:
        (self._place / name).touch()

    def pods(self, name: str) -> dict[str, str]:
        """Pod -> node."""
        every = json.loads(self("get", "pods", "-o", "json"))["items"]
        mine = [p for p in every if p["metadata"]["name"].rpartition("-")[0] == name]
        return {p["metadata"]["name"]: p["spec"].get("nodeName", "") for p in mine}

    def group(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("get", "podgroup", name, "-o", "json"))
        return found.get("status") or {}

    def phase(self, name: str, wanted: str) -> dict[str, Any]:
        self.cluster.until(lambda: self.group(name).get("phase") == wanted, f"{name} is {wanted}")
        return self.group(name)

    def sweep(self) -> None:
        for name in self._groups:
            for pod in self.pods(name):
                self("delete", "pod", pod, "--wait=true")
            self("delete", "podgroup", name)


@pytest.fixture
def kubectl(cluster: OneCluster, tmp_path: Path) -> Iterator[Kubectl]:
    found = Kubectl(cluster, tmp_path)
    yield found
    found.sweep()


def test_one_gang_waits_until_the_other_ends(kubectl: Kubectl) -> None:
    kubectl.gang("one", 3)
    kubectl.phase("one", "Running")
    kubectl.cluster.until(lambda: kubectl.group("one").get("running") == 3, "three that run")
    assert sorted(kubectl.pods("one").values()) == ["node-1", "node-2", "node-3"]
    kubectl.gang("two", 2)
    text = kubectl.cluster.event("two-0", "0/3 nodes are available: 3 Insufficient memory.")
    assert text.startswith('FailedScheduling: Gang "default/two" gets rejected due to member Pod "two-0"'), text
    assert text.endswith("; 0 of 2 can be placed"), text
    assert kubectl.pods("two") == {"two-0": "", "two-1": ""}, "a gang that waits holds nothing"
    rows = kubectl("get", "podgroup").splitlines()
    assert rows[0].split() == ["NAME", "STATUS", "MINMEMBER", "RUNNINGS", "AGE"]
    assert [row.split()[:4] for row in rows[1:]] == [["one", "Running", "3", "3"], ["two", "Inqueue", "2", "0"]]
    assert kubectl("get", "pg", "-o", "wide").splitlines()[1].split()[-1] == "default"
    queue = kubectl("get", "queue").splitlines()
    assert queue[1].split()[:3] == ["default", "Open", "1"]
    described = kubectl("describe", "podgroup", "two")
    assert "NotEnoughResources" in described
    assert "2/2 tasks in gang unschedulable: pod group is not ready, 2 Pending, 2 minAvailable" in described
    assert "volcano" in described, "whom the event is from"
    kubectl.end("one")
    kubectl.phase("one", "Completed")
    status = kubectl.phase("two", "Running")
    assert {c["type"]: c["status"] for c in status["conditions"]} == {"Unschedulable": "False", "Scheduled": "True"}
    kubectl.end("two")
    kubectl.phase("two", "Completed")


def test_pods_beyond_the_minimum_are_ordinary_pods(kubectl: Kubectl) -> None:
    kubectl.gang("some", 4, minimum=2)
    kubectl.phase("some", "Running")
    nodes = kubectl.cluster.until(
        lambda: (p := kubectl.pods("some")) and sum(map(bool, p.values())) == 3 and p, "three of four"
    )
    left = next(name for name, node in nodes.items() if not node)
    text = kubectl.cluster.event(left, "FailedScheduling")
    assert text == "FailedScheduling: 0/3 nodes are available: 3 Insufficient memory."


def test_pods_that_begin_together_on_one_node(kubectl: Kubectl) -> None:
    kubectl.gang("close", 5, memory="10Mi", nodeSelector={"kubernetes.io/hostname": "node-2"})
    kubectl.phase("close", "Running")
    kubectl.cluster.until(lambda: kubectl.group("close").get("running") == 5, "five that run")
    addresses = {kubectl.cluster.status(name)["podIP"] for name in kubectl.pods("close")}
    assert len(addresses) == 5


def test_the_scheduler_is_killed_while_gangs_come(kubectl: Kubectl) -> None:
    cluster = kubectl.cluster
    old = cluster.part("controllers")
    kubectl.gang("first", 3)
    os.kill(old, signal.SIGKILL)
    kubectl.gang("second", 2)
    cluster.until(lambda: cluster.part("controllers") != old and alive(cluster.part("controllers")), "a new one")
    kubectl.phase("first", "Running")
    cluster.event("second-0", "0 of 2 can be placed")
    assert set(kubectl.pods("second").values()) == {""}
    kubectl.end("first")
    kubectl.phase("second", "Running")


def test_onward_scheduler_and_a_second_one(kubectl: Kubectl, tmp_path: Path) -> None:
    """As a command of its own: of two one leads, and the other follows when it ends."""
    command = [sys.executable, "-m", "onward.cli.main", "scheduler", "--scheduler-name", "mine"]
    config = str(kubectl.cluster.state / "kubeconfig")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "KUBECONFIG": config}
    started = []
    try:
        for n in range(2):
            with open(tmp_path / f"log{n}", "w") as log:
                started.append(subprocess.Popen(command, stdout=log, stderr=log, env=env))
        logs = [tmp_path / f"log{n}" for n in range(2)]

        def leaders() -> list[int]:
            return [n for n, log in enumerate(logs) if "leads, for mine" in log.read_text()]

        cluster = kubectl.cluster
        cluster.until(leaders, "one that leads")
        kubectl.gang("alone", 2, scheduler="mine")
        kubectl.phase("alone", "Running")
        first = leaders()
        assert len(first) == 1
        started[first[0]].terminate()
        assert started[first[0]].wait(20) == 0
        cluster.until(lambda: len(leaders()) == 2, "the other one leads")
        kubectl.end("alone")
        kubectl.gang("later", 3, scheduler="mine")
        kubectl.phase("later", "Running")
    finally:
        for process in started:
            process.kill()
            process.wait(20)


def test_without_a_name_it_says_what_to_write() -> None:
    command = [sys.executable, "-m", "onward.cli.main", "scheduler"]
    p = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert p.returncode == 2
    assert "--scheduler-name" in p.stderr
