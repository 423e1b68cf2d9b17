"""`onward up` for somebody who is not root: pods share the machine's network; services and AscendJobs work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kernel import free_port
from normaluser import NOBODY
from onecluster import ROOT, OneCluster, logs_of

from onward.kube.objects import SERVICES, Resource
from onward.local import processes

JOBS = Resource("mindxdl.gitee.com", "v1", "ascendjobs", "AscendJob")
HELPER = [sys.executable, str(ROOT / "tests/local/normaluser.py")]


class Somebody:
    """Who runs `onward`, with a home of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.said: list[str] = []
        own = {"HOME": str(home), "USER": "somebody", "TMPDIR": str(home), "PYTHONPATH": str(ROOT)}
        self._env = {**os.environ, **own}
        self._env.pop("KUBECONFIG", None)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*HELPER, *command], capture_output=True, text=True, timeout=120, env=self._env, cwd="/", check=False
        )

    def say(self, *words: str, state: Path) -> None:
        done = self.run(sys.executable, "-m", "onward.local", *words, "--state", str(state))
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}\n{logs_of(state)}"
        self.said.append(done.stdout)


@pytest.fixture(scope="module")
def somebody() -> Iterator[Somebody]:
    if os.geteuid() != 0:
        pytest.skip("NOT ROOT: these tests start as root, to become somebody else")
    home = Path(tempfile.mkdtemp(prefix="onward-somebody-"))
    os.chown(home, NOBODY, NOBODY)
    try:
        one = Somebody(home)
        tried = one.run(sys.executable, "-c", "import os, onward.local.up; print(os.geteuid())")
        if tried.stdout.strip() != str(NOBODY):
            pytest.skip(f"NOBODY ELSE CAN RUN THIS PYTHON HERE: {tried.stderr}")
        yield one
    finally:
        shutil.rmtree(home)


@pytest.fixture(scope="module")
def theirs(somebody: Somebody) -> Iterator[OneCluster]:
    state = somebody.home / "state"
    one = OneCluster(state, "--nodes", "2", say=somebody.say)
    try:
        yield one
    finally:
        one.down()
    assert not state.exists()
    assert not processes.strays(state)


def test_what_is_different_is_said_at_once(somebody: Somebody, theirs: OneCluster) -> None:
    assert "share this machine's network" in somebody.said[0]
    assert "not root" in somebody.said[0]
    assert os.stat(theirs.state / "api.db").st_uid == NOBODY


WEB = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{name: high, port: HIGH, targetPort: OWN}, {name: low, port: 81, targetPort: OWN}]
---
apiVersion: v1
kind: Service
metadata: {name: all}
spec: {selector: {app: all}, ports: [{port: SAME}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: none
    env: [{name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]
    command: [python3, -m, http.server, --bind, $(POD_IP), "OWN"]
---
apiVersion: v1
kind: Pod
metadata: {name: all, labels: {app: all}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: none, command: [python3, -m, http.server, "SAME"]}]
"""


def test_services_have_addresses(theirs: OneCluster) -> None:
    """Of this machine's own loopback; a pod that listens on all addresses has the one of its service by itself."""
    own, high, same = free_port(), free_port(), free_port()
    theirs.apply(WEB.replace("OWN", str(own)).replace("HIGH", str(high)).replace("SAME", str(same)))

    def address(name: str) -> str:
        return str(theirs.call(theirs.client.get(SERVICES, name, "default"))["spec"]["clusterIP"])

    for name, port in (("web", high), ("all", same)):
        theirs.until(lambda n=name, p=port: answers(address(n), p), f"service {name} answers")
    theirs.event("web", "ports below 1024 need root's rights")
    assert not answers(address("web"), 81)
    theirs.delete("web")
    theirs.gone("web")
    theirs.until(lambda: not answers(address("web"), high), "nobody is behind it any more")


def answers(address: str, port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}:{port}/", timeout=5) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


ODD = """
apiVersion: v1
kind: Pod
metadata: {name: files}
spec:
  containers: [{name: c, image: none, command: [sleep, "600"], volumeMounts: [{name: e, mountPath: /onward-nowhere}]}]
  volumes: [{name: e, emptyDir: {}}]
---
apiVersion: v1
kind: Pod
metadata: {name: limits}
spec:
  securityContext: {runAsUser: 1000}
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: none, command: [sh, -c, "id -u; sleep 600"], resources: {limits: {memory: 20Mi}}}]
"""


def test_what_needs_root_is_an_event(theirs: OneCluster) -> None:
    theirs.apply(ODD)
    assert "FailedMount" in theirs.event("files", "/onward-nowhere cannot be mounted, because onward up may not mount")
    theirs.event("limits", "limits are not enforced")
    theirs.event("limits", f"container c runs as user {NOBODY}, who is not root and cannot become 1000")
    theirs.until(lambda: theirs.logs("limits") == f"{NOBODY}\n", "it runs as whoever started the cluster")


def acjob(script: Path, home: Path) -> dict[str, Any]:
    run = [sys.executable, "-m", "onward.cli.main", "run", "--nproc-per-node", "1"]
    container = {
        "name": "ascend",
        "image": "none",
        "command": [*run, str(script), "--steps", "3"],
        "env": [{"name": "PYTHONPATH", "value": str(ROOT)}, {"name": "TMPDIR", "value": str(home)}],
        "ports": [{"containerPort": 2222, "name": "ascendjob-port"}],
    }
    replica = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "metadata": {"name": "gpt", "labels": {"framework": "pytorch"}},
        "spec": {
            "schedulerName": "volcano",
            "runPolicy": {"schedulingPolicy": {"minAvailable": 2}},
            "successPolicy": "AllWorkers",
            "replicaSpecs": {"Master": replica, "Worker": replica},
        },
    }


def test_an_ascendjob_trains(somebody: Somebody, theirs: OneCluster) -> None:
    """Its two pods meet through their service, with the job's secret from their environment: nothing can be mounted."""
    theirs.call(theirs.client.create(JOBS, acjob(ROOT / "examples/gpt.py", somebody.home), "default"))

    def ended() -> str:
        status = theirs.call(theirs.client.get(JOBS, "gpt", "default")).get("status") or {}
        return next((c["type"] for c in status.get("conditions") or [] if c["type"] in ("Succeeded", "Failed")), "")

    assert theirs.until(ended, "the job ends", 150.0) == "Succeeded", theirs.logs("gpt-master-0")
    assert "3 steps, 0 incidents" in theirs.logs("gpt-master-0")
