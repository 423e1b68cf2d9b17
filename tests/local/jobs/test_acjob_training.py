"""Real training in the pods of an AscendJob, with a fault for each policy. Checked: uids, pids, steps, events."""

from __future__ import annotations

import os
import signal

import pytest
from acjobs_on_nodes import Jobs, a_job, last, training

STEPS = 120
PACED = training("tests/scripts/paced.py", "--steps", str(STEPS), "--pace", "0.1")
START_S = 150.0


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
    told = acjobs.events("mended")
    for word in ("Recovering: rank 1 killed", "Recovered: rank 1 killed", "Recovered: rank 1 lost with node 1"):
        assert any(e.startswith(word) for e in told), (word, told)
    assert any(e.startswith("jobRestarting: ") for e in told)
    ends_well(acjobs, "mended", pods)
