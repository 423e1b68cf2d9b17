"""The ElasticJob CRD with stock kubectl: what the seed shows is accepted, explained, and kept as it was written."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from onward.api.crds import crds

Kubectl = Callable[..., subprocess.CompletedProcess[str]]
SEEDS = sorted((Path(__file__).parents[3] / "examples/seeds").glob("003-elasticjob-*.yaml"))
CRD = next(crd for crd in crds() if crd["spec"]["names"]["kind"] == "ElasticJob")


@pytest.fixture(scope="module")
def k(kubectl: Kubectl) -> Kubectl:
    kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(CRD))
    kubectl("wait", "--for", "condition=Established", "crd/elasticjobs.elastic.iml.github.io", "--timeout=30s")
    kubectl("create", "namespace", "dlrover")
    return kubectl


def test_the_seeds_jobs_are_taken_as_they_are(k: Kubectl) -> None:
    assert len(SEEDS) == 2
    for seed in SEEDS:
        k("apply", "-f", str(seed))
        written = yaml.safe_load(seed.read_text())
        stored = k("-n", "dlrover", "get", "elasticjob", written["metadata"]["name"], "-o", "json").stdout
        assert json.loads(stored)["spec"] == written["spec"]
    assert k("-n", "dlrover", "get", "elasticjobs").stdout.splitlines()[0].split() == ["NAME", "PHASE", "AGE"]
    assert "No worker pods until this is false again." in k("explain", "elasticjob.spec.suspend").stdout


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"replicaSpecs": {"worker": {"replica": 2}}}, 'unknown field "spec.replicaSpecs.worker.replica"'),
        ({"replicaSpecs": {"worker": {"replicas": -1}}}, "should be greater than or equal to 0"),
        ({"suspend": "yes", "replicaSpecs": {}}, "spec.suspend"),
        ({"suspend": True}, "spec.replicaSpecs: Required value"),
    ],
)
def test_what_is_wrong_is_refused(k: Kubectl, spec: dict[str, object], says: str) -> None:
    job = {"apiVersion": "elastic.iml.github.io/v1alpha1", "kind": "ElasticJob", "metadata": {"name": "bad"}}
    refused = k("apply", "-f", "-", stdin=json.dumps({**job, "spec": spec}), check=False)
    assert refused.returncode == 1
    assert says in refused.stderr
