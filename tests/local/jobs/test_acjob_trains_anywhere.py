"""Training in the pods of any cluster, by kubectl alone: faults are asked for on the command line, or are deleted pods.

See `test_acjob_anywhere`; here pods run, so a given cluster needs ONWARD_TEST_IMAGE.
"""

from __future__ import annotations

import json

import pytest
from by_kubectl import Kubectl, Obj, last, of_pods
from given import Somewhere
from onecluster import ROOT

pytestmark = [pytest.mark.torch, pytest.mark.nightly, pytest.mark.timeout(900)]
START_S = 300.0  # an image may have to be pulled
STEPS = 150


def script(anywhere: Kubectl) -> None:
    """The training script, as the pods get it: a ConfigMap."""
    text = (ROOT / "tests/scripts/paced.py").read_text()
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"paced.py": text}}
    anywhere.kubectl("create", "-f", "-", stdin=json.dumps(config))


def a_training(where: Somewhere, name: str, policies: str, *flags: str) -> Obj:
    run = ["-m", "onward.cli.main", "run", "--spares", "none", "--grace", "3", *flags]
    container = {
        "name": "ascend",
        "image": where.image,
        "imagePullPolicy": "IfNotPresent",
        "command": [where.python, *run, "/job/code/paced.py", "--steps", str(STEPS), "--pace", "0.1"],
        "env": [{"name": "PYTHONPATH", "value": str(ROOT)}] if where.here else [],
        "volumeMounts": [{"name": "code", "mountPath": "/job/code"}],
    }
    spec = {
        "containers": [container],
        "terminationGracePeriodSeconds": 5,
        "volumes": [{"name": "code", "configMap": {"name": "code"}}],
    }
    labels = {"fault-scheduling": "grace", "fault-retry-times": "3"}
    return of_pods(name, spec, 1, labels, {"recover-strategy": policies})


def test_a_rank_dies_and_pods_are_deleted(anywhere: Kubectl, somewhere: Somewhere) -> None:
    """In-place recovery at step 20, then each pod is replaced. No step is lost, and nothing is counted."""
    if not somewhere.image:
        pytest.skip("no image for pods: set ONWARD_TEST_IMAGE")
    script(anywhere)
    fault = ("--chaos", "kind=kill,rank=1,step=20")
    anywhere.apply(a_training(somewhere, "train", "recover-in-place,recover", *fault))
    anywhere.until("train", lambda s: "recover-in-place" in s.get("lastIncident", ""), "mended in place", START_S)
    uids = anywhere.uids("train")
    for node, pod in ((1, "train-worker-0"), (0, "train-master-0")):
        anywhere.kubectl("delete", "pod", pod)
        lost = f"lost with node {node}"
        anywhere.until("train", lambda s, lost=lost: lost in s.get("lastIncident", ""), f"{pod} is replaced", START_S)
    now = anywhere.uids("train")
    assert all(now[pod] != uid for pod, uid in uids.items())
    status = anywhere.state("train", "Succeeded", START_S)
    assert status["restarts"] == 0
    for pod in now:
        steps = anywhere.steps(pod)
        assert steps == list(range(steps[0], STEPS)), f"{pod}: each step counts once"
    anywhere.kubectl("delete", "acjob", "train")
    anywhere.gone("train")


def test_a_program_that_fails(anywhere: Kubectl, somewhere: Somewhere) -> None:
    if not somewhere.image:
        pytest.skip("no image for pods: set ONWARD_TEST_IMAGE")
    container = {"name": "ascend", "image": somewhere.image, "command": ["sh", "-c", "sleep 1; exit 3"]}
    anywhere.apply(of_pods("bad", {"containers": [container]}, labels={"fault-retry-times": "1"}))
    status = anywhere.state("bad", "Failed", START_S)
    assert last(status)["message"].endswith("has failed because pod failed and remain retry times is 0.")
    assert status["restarts"] == 1
    anywhere.event("bad", "is unconditional retry job and remain retry times is <1>.")
