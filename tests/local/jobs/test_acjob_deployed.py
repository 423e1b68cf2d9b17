"""What deploy/ says, as it stands: applied by stock kubectl; its commands run in pods, with the accounts it makes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from acjobs_on_nodes import ANYWHERE, Jobs, a_job, waiting_for
from by_kubectl import Kubectl, Obj
from onecluster import ROOT, RUN, OneCluster

from onward.api.pods import CONTROLLER, OPERATOR_NAME

SYSTEM = "onward-system"
PARTS = ("operator", "scheduler")
OF_THIS_CLUSTER = ("no controller for deployments runs here", "there is one user here, admin")
FILES = sorted([*(ROOT / "deploy").glob("*.yaml"), *(ROOT / "examples").glob("*.yaml")])


def objects(file: Path) -> list[Obj]:
    return [obj for obj in yaml.safe_load_all(file.read_text()) if obj]


@pytest.fixture
def system(acjobs: Jobs) -> Iterator[Kubectl]:
    found = Kubectl(acjobs.cluster.state / "kubeconfig", acjobs.home, SYSTEM)
    try:
        yield found
    finally:
        for part in PARTS:  # the scheduler's file needs the namespace, which goes with the operator's
            found.kubectl("delete", "--ignore-not-found", "-f", str(ROOT / f"deploy/{part}.yaml"))


def deployed(system: Kubectl, part: str) -> str:
    """Apply its file; nobody makes pods of Deployments here, so its pod is made by hand. The name of it."""
    done = system.tried("apply", "--validate=strict", "-f", str(ROOT / f"deploy/{part}.yaml"))
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if not any(words in line for words in OF_THIS_CLUSTER)]
    assert not warnings, "nothing else is worth a warning"
    deployment: Obj = json.loads(system.kubectl("get", "deployment", f"onward-{part}", "-o", "json"))
    template = deployment["spec"]["template"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    spec = template["spec"] | {"tolerations": ANYWHERE, "terminationGracePeriodSeconds": 5}
    (container,) = spec["containers"]
    container["env"] = [{"name": "ONWARD_TEST_RUN", "value": RUN}, {"name": "PYTHONPATH", "value": str(ROOT)}]
    # The machine's own files are the image here, and its Python need not be readable to anybody else.
    container["securityContext"] |= {"runAsNonRoot": False, "runAsUser": os.getuid()}
    name = f"onward-{part}-by-hand"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "name": name}, "spec": spec}
    system.kubectl("create", "-f", "-", stdin=json.dumps(pod))
    return name


@contextlib.contextmanager
def without_its_own(cluster: OneCluster) -> Iterator[None]:
    """What the cluster of this machine does by itself stands still meanwhile."""
    own = [cluster.part(part) for part in ("operator", "controllers")]  # the scheduler is one of these
    for pid in own:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in own:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_operator_and_scheduler_work_in_pods_as_they_are_deployed(
    acjobs: Jobs, system: Kubectl, cluster: OneCluster, tmp_path: Path
) -> None:
    names = [deployed(system, part) for part in PARTS]
    for name, part in zip(names, PARTS, strict=True):
        leads = lambda name=name: "leads onward-system/onward-" in system.kubectl("logs", name)  # noqa: E731
        system.wait(leads, f"{name} leads: {part}", 60.0)
    with without_its_own(cluster):
        done = tmp_path / "done"
        acjobs.apply(a_job("deployed", waiting_for(done)))
        acjobs.state("deployed", "Running")
        done.touch()
        acjobs.state("deployed", "Succeeded")
    for name in names:
        said = system.kubectl("logs", name)
        assert not [word for word in ("Traceback", "forbidden") if word in said], said
        pod: Obj = json.loads(system.kubectl("get", "pod", name, "-o", "json"))
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    acjobs.kubectl("delete", "acjob", "deployed")
    acjobs.gone("deployed")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_file_is_what_the_server_expects(acjobs: Jobs, file: Path) -> None:
    """Strictly: no field that it does not know."""
    for obj in objects(file):
        obj["metadata"].pop("namespace", None)  # it may not be there
        words = ("apply", "--dry-run=server", "--validate=strict", "-f", "-")
        done = acjobs.tried(*words, stdin=json.dumps(obj))
        assert done.returncode == 0, done.stderr
        assert "(server dry run)" in done.stdout


def test_the_network_policy_is_about_the_pods_that_there_are() -> None:
    (policy,) = objects(ROOT / "deploy/network-policy.yaml")
    (deployment,) = [o for o in objects(ROOT / "deploy/operator.yaml") if o["kind"] == "Deployment"]
    jobs = {OPERATOR_NAME: CONTROLLER}
    others, operator = policy["spec"]["ingress"][0]["from"]
    assert policy["spec"]["podSelector"]["matchLabels"] == others["podSelector"]["matchLabels"] == jobs
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert operator["podSelector"]["matchLabels"].items() <= labels.items()
    where = operator["namespaceSelector"]["matchLabels"]
    assert where == {"kubernetes.io/metadata.name": deployment["metadata"]["namespace"]}
