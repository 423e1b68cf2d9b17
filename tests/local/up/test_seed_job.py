"""The sample of the seed, as it is written, from `kubectl apply` to Succeeded, on nodes that suit it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import machine
import pytest
from onecluster import OneCluster

from onward.local import wiring

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SEED = EXAMPLES / "seeds/004-pytorch_multinodes_acjob_910b.yaml"
ELASTIC = EXAMPLES / "seeds/003-elasticjob-torch-mnist-suspend.yaml"
NAME = "default-test-pytorch"

Kubectl = Callable[..., str]


@pytest.fixture
def kubectl(tmp_path: Path) -> Iterator[Kubectl]:
    why = wiring.possible()
    if why or not machine.use_kubectl():
        pytest.skip(why or machine.NO_KUBECTL)
    copy = shutil.copytree(EXAMPLES, tmp_path / "examples")  # the job writes into its output directory
    cluster = OneCluster(tmp_path / "state", "--node-file", str(copy / "machine/nodes.yaml"))
    environment = {**os.environ, "KUBECONFIG": str(cluster.state / "kubeconfig"), "HOME": str(tmp_path)}

    def run(*words: str) -> str:
        done = subprocess.run(
            ["kubectl", *words], capture_output=True, text=True, timeout=200, env=environment, check=False
        )
        assert done.returncode == 0, f"kubectl {' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout

    try:
        yield run
    finally:
        cluster.down()


@pytest.mark.torch
def test_from_apply_to_succeeded(kubectl: Kubectl) -> None:
    kubectl("create", "namespace", "dlrover")
    assert "created" in kubectl("apply", "-f", str(ELASTIC))
    assert "created" in kubectl("apply", "-f", str(SEED))
    kubectl("wait", f"acjob/{NAME}", "--for=jsonpath={.status.conditions[-1].type}=Running", "--timeout=60s")
    pods = json.loads(kubectl("get", "pods", "-l", f"job-name={NAME}", "-o", "json"))["items"]
    assert [p["metadata"]["name"] for p in pods] == [f"{NAME}-master-0", f"{NAME}-worker-0"]
    assert len({p["spec"]["nodeName"] for p in pods}) == 2, "its anti-affinity keeps them apart"
    kubectl("wait", f"acjob/{NAME}", "--for=jsonpath={.status.conditions[-1].type}=Succeeded", "--timeout=180s")
    head, row = kubectl("get", "acjob").splitlines()
    assert head.split()[:3] == ["NAME", "STATE", "AGE"]
    assert row.split()[:2] == [NAME, "Succeeded"]
    conditions = json.loads(kubectl("get", "acjob", NAME, "-o", "jsonpath={.status.conditions}"))
    assert conditions[-1] == json.loads(kubectl("get", "acjob", NAME, "-o", "jsonpath={.status.conditions[-1]}"))
    states = [(c["type"], c["status"]) for c in conditions if c["type"] in ("Created", "Running", "Succeeded")]
    assert states == [("Created", "True"), ("Running", "False"), ("Succeeded", "True")]
    told = kubectl("-n", "dlrover", "describe", "elasticjob", "torch-mnist")
    assert "does not run them yet" in told, "one that nothing runs is told so meanwhile"
    fields = {"type", "status", "lastTransitionTime", "lastUpdateTime", "message", "reason"}
    assert all(set(condition) == fields for condition in conditions)
    said = kubectl("logs", f"{NAME}-master-0")
    assert "epoch 90 of 90" in said
    assert "Succeeded: 90 steps" in said
    events = kubectl("get", "events", "--field-selector", f"involvedObject.name={NAME}")
    assert "ring-controller.atlas" in events
    assert "huawei.com/schedule_policy" in events


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.parametrize("file", ["ascendjob-gpt.yaml", "ascendjob-cluster.yaml"])
def test_our_own_example_trains(kubectl: Kubectl, tmp_path: Path, file: str) -> None:
    text = (EXAMPLES / file).read_text().replace("/opt/onward/examples", str(EXAMPLES))  # where its image has them
    (tmp_path / file).write_text(text)
    kubectl("apply", "--validate=strict", "-f", str(tmp_path / file))
    kubectl("wait", "acjob/gpt", "--for=jsonpath={.status.conditions[-1].type}=Succeeded", "--timeout=190s")
    for pod in ("gpt-master-0", "gpt-worker-0"):
        assert "Succeeded: 100 steps" in kubectl("logs", pod)
