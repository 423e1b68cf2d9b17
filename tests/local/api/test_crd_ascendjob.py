"""The AscendJob CRD with stock kubectl: what the seed shows, what is refused at once, and that nothing is lost."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from onward.api import ascendjob
from onward.api.crds import crds
from onward.api.job import Job
from onward.api.status import Condition, update

Kubectl = Callable[..., subprocess.CompletedProcess[str]]
SEED = Path(__file__).parents[3] / "examples/seeds/004-pytorch_multinodes_acjob_910b.yaml"
NAME = "default-test-pytorch"


@pytest.fixture(scope="module")
def kinds(kubectl: Kubectl) -> None:
    kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(crds()))
    kubectl("wait", "--for", "condition=Established", "crd/ascendjobs.mindxdl.gitee.com", "--timeout=30s")


@pytest.fixture
def k(kubectl: Kubectl, kinds: None, namespace: str) -> Kubectl:
    def run(*args: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        return kubectl("-n", namespace, *args, stdin=stdin, check=check)

    return run


def small(**changes: Any) -> dict[str, Any]:
    pod = {"spec": {"containers": [{"name": "ascend", "image": "any"}]}}
    found = {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "metadata": {"name": "small", "labels": {"framework": "pytorch"}},
        "spec": {"replicaSpecs": {"Master": {"template": pod}}},
    }
    return {**copy.deepcopy(found), **changes}


def test_the_seeds_sample_and_its_queries(k: Kubectl) -> None:
    k("apply", "-f", str(SEED))
    stored = json.loads(k("get", "acjob", NAME, "-o", "json").stdout)
    written = yaml.safe_load(SEED.read_text())
    assert stored["spec"] == written["spec"]
    job = ascendjob.read(stored)
    assert isinstance(job, Job)
    conditions = update([], Condition("Created", "JobCreated", "it is there"), (), "2024-01-01T10:00:00Z")
    running = Condition("Running", "JobRunning", f"Job {job.key} is running.")
    conditions = update(conditions, running, (), "2024-01-01T10:00:05Z")
    patch = {"status": {"conditions": conditions, "replicaStatuses": {"Master": {"active": 1}}, "ready": "2/2"}}
    k("patch", "acjob", NAME, "--subresource=status", "--type=merge", "-p", json.dumps(patch))
    head, row = k("get", "acjob").stdout.splitlines()
    assert head.split() == ["NAME", "STATE", "AGE", "READY", "POLICY", "RESTARTS"]
    assert row.split()[:2] == [NAME, "Running"]
    assert row.split()[3] == "2/2"
    assert yaml.safe_load(k("get", "acjob", NAME, "-o", "yaml").stdout)["status"]["conditions"] == conditions
    listed = k("get", "acjob", NAME, "-o", "jsonpath={.status.conditions}").stdout
    assert json.loads(listed) == conditions
    last = json.loads(k("get", "acjob", NAME, "-o", "jsonpath={.status.conditions[-1]}").stdout)
    assert (last["type"], last["reason"], last["message"]) == ("Running", running.reason, running.message)
    assert "minAvailable" in k("explain", "acjob.spec.runPolicy.schedulingPolicy").stdout


@pytest.mark.parametrize(
    "spec",
    [
        {"replicaSpecs": {"Master": {"replicas": -1}}},
        {"replicaSpecs": {"Master": {"replicas": 20001}}},
        {"replicaSpecs": {"master": {"template": {"spec": {"containers": []}}}}},
        {"replicaSpecs": {"Boss": None}, "successPolicy": "None"},
        {"replicaSpecs": {}},
    ],
)
def test_what_is_wrong_in_its_meaning_is_accepted_and_seen_by_the_operator(k: Kubectl, spec: dict[str, Any]) -> None:
    k("apply", "--validate=false", "-f", "-", stdin=json.dumps(small(spec=spec)))
    assert isinstance(ascendjob.read(json.loads(k("get", "acjob", "small", "-o", "json").stdout)), list)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"spec": {}}, "spec.replicaSpecs: Required value"),
        ({"spec": {"replicaSpecs": {"Master": {"replicas": "two"}}}}, "must be of type integer"),
        ({"spec": {"replicaSpec": {}, "replicaSpecs": {}}}, 'unknown field "spec.replicaSpec"'),
        ({"metadata": {"name": "x" * 56}}, "at most 55 characters"),
    ],
)
def test_what_cannot_be_a_job_is_refused_at_once(k: Kubectl, change: dict[str, Any], says: str) -> None:
    done = k("apply", "-f", "-", stdin=json.dumps(small(**change)), check=False)
    assert done.returncode != 0
    assert says in done.stderr


def test_no_field_of_a_template_is_lost(k: Kubectl) -> None:
    given = small()
    template = given["spec"]["replicaSpecs"]["Master"]["template"]
    template["metadata"] = {"annotations": {"gang.scheduling.koordinator.sh/min-available": 4}, "labels": {"a": "b"}}
    template["spec"] |= {"fieldOfTheFuture": {"deep": [1, {"x": 2}]}, "volumes": [{"name": "v", "emptyDir": {}}]}
    template["spec"]["containers"][0] |= {"ports": [{"containerPort": 1, "name": "p"}], "future": True}
    k("apply", "-f", "-", stdin=json.dumps(given))
    stored = json.loads(k("get", "acjob", "small", "-o", "json").stdout)
    assert stored["spec"]["replicaSpecs"]["Master"]["template"] == template
