"""AscendJobs on any cluster: `KUBECONFIG=... make test-cluster`; without one, on that of this machine.

Everything is asked and seen by stock kubectl. Nothing here needs a pod that runs: no job finds a place.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from by_kubectl import Kubectl, Obj, last, of_pods

NOWHERE = {"onward.test/no-such-node": "here"}
CONTAINER: Obj = {"name": "ascend", "image": "any", "command": ["sleep", "600"]}
SPEC: Obj = {"nodeSelector": NOWHERE, "containers": [CONTAINER]}


def waiting(name: str, workers: int = 1, **run: Any) -> Obj:
    return of_pods(name, SPEC, workers, **run)


def changed(name: str, change: Callable[[Obj], object]) -> Obj:
    job = copy.deepcopy(waiting(name))
    change(job)
    return job


def worker(job: Obj) -> Obj:
    found: Obj = job["spec"]["replicaSpecs"]["Worker"]
    return found


def containers(job: Obj) -> list[Obj]:
    found: list[Obj] = worker(job)["template"]["spec"]["containers"]
    return found


def label(key: str, value: str) -> Callable[[Obj], object]:
    return lambda job: job["metadata"]["labels"].update({key: value})


def note(key: str, value: str) -> Callable[[Obj], object]:
    return lambda job: job["metadata"]["annotations"].update({key: value})


WRONG: dict[str, tuple[str, Callable[[Obj], object]]] = {
    "no-framework": ("InvalidFramework", lambda job: job["metadata"]["labels"].clear()),
    "other-framework": ("InvalidFramework", label("framework", "jax")),
    "no-leader": ("InvalidReplicaType", lambda job: job["spec"]["replicaSpecs"].pop("Master")),
    "two-leaders": ("InvalidReplicaSpec", lambda job: job["spec"]["replicaSpecs"]["Master"].update(replicas=2)),
    "foreign-type": ("InvalidReplicaType", lambda job: job["spec"]["replicaSpecs"].update(Chief=worker(job))),
    "negative": ("InvalidReplicaSpec", lambda job: worker(job).update(replicas=-1)),
    "too-many": ("InvalidReplicaSpec", lambda job: worker(job).update(replicas=20001)),
    "other-container": ("InvalidContainer", lambda job: containers(job)[0].update(name="c")),
    "success": ("InvalidSuccessPolicy", lambda job: job["spec"].update(successPolicy="ChiefWorker")),
    "queue": ("InvalidQueue", lambda job: job["spec"]["runPolicy"].update(schedulingPolicy={"queue": "no-such-queue"})),
    "strategy": ("InvalidRecoverStrategy", note("recover-strategy", "recvoer")),
    "scheduling": ("InvalidFaultScheduling", label("fault-scheduling", "gracefully")),
    "sub-health": ("InvalidSubHealthyStrategy", label("subHealthyStrategy", "hotswap")),
    "times": ("InvalidFaultRetryTimes", label("fault-retry-times", "three")),
    "rescheduling": ("InvalidPodRescheduling", label("pod-rescheduling", "yes")),
    "timeout": ("InvalidWaitRescheduleTimeout", note("wait-reschedule-timeout", "soon")),
    "available": (
        "InvalidMinAvailable",
        lambda job: job["spec"]["runPolicy"].update(schedulingPolicy={"minAvailable": 3}),
    ),
}
REFUSED: dict[str, tuple[str, Callable[[Obj], object]]] = {
    "no-replicas": ("replicaSpecs", lambda job: job["spec"].pop("replicaSpecs")),
    "no-number": ("replicas", lambda job: worker(job).update(replicas="two")),
    "long-name": ("55", lambda job: job["metadata"].update(name="n" * 56)),
}


def test_what_is_wrong_is_told(anywhere: Kubectl) -> None:
    gangs = anywhere.has_gangs()
    table = {name: row for name, row in WRONG.items() if gangs or name != "queue"}
    anywhere.apply(*(changed(name, change) for name, (_, change) in table.items()))
    for name, (reason, _) in table.items():
        found = last(anywhere.state(name, "Failed"))
        assert found["reason"] == "JobValidFailed", name
        assert found["message"].startswith(f"{reason}: "), found["message"]
        anywhere.event(name, f"{reason}: ")
    several = changed("several", label("fault-scheduling", "gracefully"))
    worker(several)["replicas"] = -1
    note("recover-strategy", "recvoer,restart")(several)
    anywhere.apply(several)
    message = last(anywhere.state("several", "Failed"))["message"]
    for words in ("InvalidReplicaSpec", "InvalidFaultScheduling", "did you mean 'grace'", "'recvoer'", "'restart'"):
        assert words in message, message
    assert not anywhere.owned("several", ["pods", "services"])


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_stored_is_refused(anywhere: Kubectl, name: str) -> None:
    words, change = REFUSED[name]
    done = anywhere.tried("apply", "-f", "-", stdin=json.dumps(changed(name, change)))
    assert done.returncode != 0
    assert words in done.stderr


def test_a_job_that_fits_nowhere(anywhere: Kubectl) -> None:
    """Its surroundings are there, its state says why it waits, edits are followed, and nothing is left of it."""
    anywhere.apply(waiting("big", 3, schedulingPolicy={"minAvailable": 3}))
    if anywhere.has_gangs():
        anywhere.until("big", lambda s: last(s).get("reason") == "PodGroupPending", "it waits")
        group = anywhere.owned("big", ["podgroups"])[0]
        assert "0 of 3 can be placed" in anywhere.latest("big")["message"]
        assert group["spec"]["minMember"] == 3
        assert group["spec"]["minTaskMember"] == {"master": 1, "worker": 3}
    else:
        anywhere.wait(lambda: len(anywhere.pods("big")) == 4, "its pods wait")
    assert last(anywhere.status("big"))["type"] == "Created"
    service = anywhere.owned("big", ["services"])[0]
    assert service["metadata"]["name"] == "big-master-0"
    assert {p["port"] for p in service["spec"]["ports"]} >= {2222}
    assert anywhere.kubectl("get", "acjob", "big", "--no-headers").split()[:2] == ["big", "Created"]
    assert anywhere.tried("create", "-f", "-", stdin=json.dumps(waiting("big"))).returncode != 0, "the name is taken"

    anywhere.patch("big", {"spec": {"replicaSpecs": {"Worker": {"replicas": 5}}}})
    if anywhere.has_gangs():
        tasks = {"master": 1, "worker": 5}
        grown = lambda: anywhere.owned("big", ["podgroups"])[0]["spec"]["minTaskMember"] == tasks  # noqa: E731
        anywhere.wait(grown, "the PodGroup asks for more")
    else:
        anywhere.wait(lambda: len(anywhere.pods("big")) == 6, "more pods wait")
    anywhere.patch("big", {"spec": {"runPolicy": {"suspend": True}}})
    anywhere.until("big", lambda s: last(s).get("reason") == "JobSuspended", "it is suspended")
    anywhere.wait(lambda: not anywhere.owned("big", ["pods"]), "no pods while it is suspended")
    anywhere.patch("big", {"spec": {"runPolicy": {"suspend": False}}})
    anywhere.until("big", lambda s: last(s).get("reason") != "JobSuspended", "it goes on")
    anywhere.event("big", "JobResumed: ")
    anywhere.patch("big", {"metadata": {"annotations": {"recover-strategy": "recvoer"}}})
    assert "InvalidRecoverStrategy" in last(anywhere.state("big", "Failed"))["message"], "an edit can end it"
    anywhere.kubectl("delete", "acjob", "big")
    anywhere.gone("big")


def test_its_time_runs_out(anywhere: Kubectl) -> None:
    anywhere.apply(waiting("late", activeDeadlineSeconds=1, ttlSecondsAfterFinished=3))
    assert "activeDeadlineSeconds" in last(anywhere.state("late", "Failed"))["message"]
    anywhere.gone("late")


def test_its_namespace_is_deleted(anywhere: Kubectl) -> None:
    """Nothing is made in it from then on, and nothing keeps it."""
    anywhere.apply(waiting("doomed"))
    anywhere.wait(lambda: anywhere.owned("doomed", ["services"]), "it has begun")
    anywhere.kubectl("delete", "namespace", anywhere.namespace, "--timeout=60s")
    assert anywhere.tried("get", "namespace", anywhere.namespace).returncode != 0
