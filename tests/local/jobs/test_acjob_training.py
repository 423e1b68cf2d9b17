"""Real training in the pods of an AscendJob, with a fault for each policy. Checked: uids, pids, steps, events."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from acjobs_on_nodes import Jobs, a_job, training
from by_kubectl import Obj, last
from onecluster import OneCluster, onward_local

STEPS = 100
PACED = training("tests/scripts/paced.py", "--steps", str(STEPS), "--pace", "0.1")
START_S = 150.0


def min_available(pods: int) -> dict[str, Any]:
    return {"schedulingPolicy": {"minAvailable": pods}}


def trains(acjobs: Jobs, name: str, pods: tuple[str, ...], step: int = 3) -> None:
    acjobs.state(name, "Running")
    far = lambda: all(acjobs.steps(pod)[-1:] > [step] for pod in pods)  # noqa: E731
    acjobs.cluster.until(far, f"{name} trains", START_S)


def ends_well(acjobs: Jobs, name: str, pods: tuple[str, ...]) -> None:
    acjobs.state(name, "Succeeded", START_S)
    for pod in pods:
        steps = acjobs.steps(pod)
        assert steps == list(range(steps[0], STEPS)), f"{pod}: each step counts once"
        assert "0 steps lost" in acjobs.kubectl("logs", pod, "--tail", "5")
    acjobs.kubectl("delete", "acjob", name)
    acjobs.gone(name)


@pytest.mark.torch
def test_a_rank_is_killed_and_then_a_pod_is_deleted(acjobs: Jobs) -> None:
    """`recover-in-place`: no pod changes, one process does. `recover`: one pod does, and no process of the other."""
    notes = {"recover-strategy": "recover-in-place,recover"}
    acjobs.apply(a_job("mended", PACED, labels={"fault-scheduling": "grace"}, notes=notes))
    pods = ("mended-master-0", "mended-worker-0")
    trains(acjobs, "mended", pods)
    uids, ranks = acjobs.uids("mended"), {pod: acjobs.ranks(pod) for pod in pods}

    os.kill(ranks["mended-worker-0"][1], signal.SIGKILL)
    story = acjobs.until("mended", lambda s: "recover-in-place" in s.get("lastIncident", ""), "it is mended", START_S)
    assert story["lastIncident"].startswith("rank 1 killed (SIGKILL): recover-in-place")
    assert last(story)["type"] == "Running"
    assert acjobs.uids("mended") == uids
    after = {pod: acjobs.ranks(pod) for pod in pods}
    assert after["mended-master-0"] == ranks["mended-master-0"]
    assert after["mended-worker-0"] != ranks["mended-worker-0"]

    acjobs.kubectl("delete", "pod", "mended-worker-0")
    story = acjobs.until("mended", lambda s: "lost with node 1" in s.get("lastIncident", ""), "recovered", START_S)
    assert story["restarts"] == 0, "a recovery that keeps the job running costs nothing"
    now = acjobs.uids("mended")
    assert now["mended-master-0"] == uids["mended-master-0"]
    assert now["mended-worker-0"] != uids["mended-worker-0"]
    assert acjobs.ranks("mended-master-0") == ranks["mended-master-0"]
    for words in ("Recovering: rank 1 killed", "Recovered: rank 1 killed", "Recovered: rank 1 lost with node 1"):
        acjobs.cluster.event("mended", words)
    acjobs.cluster.event("mended", "jobRestarting: ")
    ends_well(acjobs, "mended", pods)


def has(status: Obj, kind: str, value: str) -> bool:
    return any(c["type"] == kind and c["status"] == value for c in status.get("conditions") or [])


@pytest.mark.torch
@pytest.mark.nightly
def test_the_pod_of_rank_0_is_deleted(acjobs: Jobs) -> None:
    """With it go the leader, the manager and the store: the other pod keeps its process all the same."""
    notes = {"recover-strategy": "recover"}
    acjobs.apply(a_job("first", PACED, labels={"fault-scheduling": "grace"}, notes=notes))
    pods = ("first-master-0", "first-worker-0")
    trains(acjobs, "first", pods)
    uids, ranks = acjobs.uids("first"), acjobs.ranks("first-worker-0")
    acjobs.kubectl("delete", "pod", "first-master-0")
    status = acjobs.until("first", lambda s: "lost with node 0" in s.get("lastIncident", ""), "recovered", START_S)
    assert status["restarts"] == 0
    assert acjobs.uids("first")["first-master-0"] != uids["first-master-0"]
    assert acjobs.uids("first")["first-worker-0"] == uids["first-worker-0"]
    assert acjobs.ranks("first-worker-0") == ranks
    ends_well(acjobs, "first", pods)


@pytest.mark.torch
@pytest.mark.nightly
def test_operator_and_manager_are_killed_while_a_pod_is_replaced(acjobs: Jobs) -> None:
    notes = {"recover-strategy": "recover"}
    acjobs.apply(a_job("bare", PACED, labels={"fault-scheduling": "grace"}, notes=notes))
    pods = ("bare-master-0", "bare-worker-0")
    trains(acjobs, "bare", pods)
    uids, ranks = acjobs.uids("bare"), acjobs.ranks("bare-master-0")
    acjobs.kubectl("delete", "pod", "bare-worker-0", "--wait=false")
    acjobs.state("bare", "Restarting")
    os.kill(acjobs.cluster.part("operator"), signal.SIGKILL)
    os.kill(acjobs.manager("bare-master-0"), signal.SIGKILL)
    acjobs.until("bare", lambda s: "lost with node 1" in s.get("lastIncident", ""), "recovered", START_S)
    assert acjobs.uids("bare")["bare-master-0"] == uids["bare-master-0"]
    assert acjobs.ranks("bare-master-0") == ranks
    ends_well(acjobs, "bare", pods)


@pytest.mark.torch
@pytest.mark.nightly
def test_with_nowhere_to_go_the_others_train_on_and_grow_back(acjobs: Jobs) -> None:
    notes = {"recover-strategy": "recover,elastic-training", "wait-reschedule-timeout": "5"}
    command = training("tests/scripts/elastic.py", "--steps", "400", "--pace", "0.1")
    acjobs.apply(a_job("shrunk", command, labels={"fault-scheduling": "grace"}, notes=notes, **min_available(1)))
    pods = ("shrunk-master-0", "shrunk-worker-0")
    trains(acjobs, "shrunk", pods)
    ranks = acjobs.ranks("shrunk-master-0")
    home = next(p["spec"]["nodeName"] for p in acjobs.pods("shrunk") if p["metadata"]["name"] == "shrunk-master-0")
    others = [n for n in ("node-1", "node-2", "node-3") if n != home]
    for node in others:
        acjobs.kubectl("cordon", node)
    try:
        acjobs.kubectl("delete", "pod", "shrunk-worker-0")
        status = acjobs.until("shrunk", lambda s: has(s, "Degraded", "True"), "it goes on with fewer", START_S)
        assert last(status)["type"] == "Restarting", "a pod is missing, and is being made anew"
        far = max(acjobs.steps("shrunk-master-0"))
        acjobs.cluster.until(lambda: max(acjobs.steps("shrunk-master-0")) > far + 3, "it trains", START_S)
    finally:
        for node in others:
            acjobs.kubectl("uncordon", node)
    acjobs.until("shrunk", lambda s: has(s, "Degraded", "False"), "it has grown back", START_S)
    acjobs.state("shrunk", "Running")
    assert acjobs.ranks("shrunk-master-0") == ranks
    acjobs.state("shrunk", "Succeeded", START_S)
    acjobs.kubectl("delete", "acjob", "shrunk")
    acjobs.gone("shrunk")


@pytest.mark.torch
@pytest.mark.nightly
@pytest.mark.parametrize("policy", ["dump", "exit"])
def test_all_ranks_start_again_and_no_pod_does(acjobs: Jobs, tmp_path: Path, policy: str) -> None:
    """`dump`: from the step that was committed last. `exit`: from the last checkpoint; here there is none."""
    flags = ("--dump-dir", str(tmp_path)) if policy == "dump" else ()
    command = training("tests/scripts/paced.py", "--steps", str(STEPS), "--pace", "0.1", flags=flags)
    acjobs.apply(a_job(policy, command, notes={"recover-strategy": policy}))
    pods = (f"{policy}-master-0", f"{policy}-worker-0")
    trains(acjobs, policy, pods, step=10)
    uids, ranks = acjobs.uids(policy), acjobs.ranks(pods[0])
    os.kill(acjobs.ranks(pods[1])[1], signal.SIGKILL)
    status = acjobs.until(policy, lambda s: f": {policy}" in s.get("lastIncident", ""), "it goes on", START_S)
    assert last(status)["type"] == "Running"
    assert acjobs.uids(policy) == uids
    assert acjobs.ranks(pods[0]) != ranks
    acjobs.state(policy, "Succeeded", START_S)
    steps = acjobs.steps(pods[0])
    again = [n for i, n in enumerate(steps) if n in steps[:i]]
    assert bool(again) == (policy == "exit"), "a dump loses no step"
    assert sorted(set(steps)) == list(range(STEPS))
    acjobs.kubectl("delete", "acjob", policy)
    acjobs.gone(policy)


@pytest.mark.torch
@pytest.mark.nightly
def test_a_script_that_cannot_work_uses_up_its_budget(acjobs: Jobs, tmp_path: Path) -> None:
    """All pods fail together; the job is restarted as often as it was allowed, and then has failed."""
    script = tmp_path / "broken.py"
    script.write_text("import onward\nrun = onward.init()\nraise SystemExit(7)\n")
    labels = {"fault-scheduling": "grace", "fault-retry-times": "1"}
    notes = {"recover-strategy": "recover-in-place,recover"}
    acjobs.apply(a_job("broken", training(str(script)), labels=labels, notes=notes))
    status = acjobs.state("broken", "Failed", 2 * START_S)
    assert last(status)["message"] == "Job default/broken has failed because pod failed and remain retry times is 0."
    assert status["restarts"] == 1
    said = "jobRestarting: Job default/broken is unconditional retry job and remain retry times is <1>."
    acjobs.cluster.event("broken", said)
    acjobs.kubectl("delete", "acjob", "broken")
    acjobs.gone("broken")


@pytest.mark.torch
@pytest.mark.nightly
def test_the_node_of_rank_0_is_cut_off(acjobs: Jobs, cluster: OneCluster) -> None:
    """It has the manager and two of three votes. The operator takes its pod away, and says so to the others."""
    notes = {"recover-strategy": "recover"}
    command = training("tests/scripts/paced.py", "--steps", "300", "--pace", "0.1")
    acjobs.apply(a_job("cut", command, labels={"fault-scheduling": "force"}, notes=notes))
    pods = ("cut-master-0", "cut-worker-0")
    trains(acjobs, "cut", pods)
    ranks = acjobs.ranks("cut-worker-0")
    bad = next(p["spec"]["nodeName"] for p in acjobs.pods("cut") if p["metadata"]["name"] == "cut-master-0")
    onward_local("chaos", "partition", bad, state=cluster.state)
    try:
        acjobs.until("cut", lambda s: "lost with node 0" in s.get("lastIncident", ""), "recovered", START_S)
        assert acjobs.ranks("cut-worker-0") == ranks
    finally:
        onward_local("chaos", "heal", bad, state=cluster.state)
    acjobs.state("cut", "Succeeded", START_S)
    steps = acjobs.steps("cut-worker-0")
    assert steps == list(range(300)), "each step counts once"
    acjobs.kubectl("delete", "acjob", "cut")
    acjobs.gone("cut")
