"""An AscendJob on the cluster of this machine, from apply to delete, with stock kubectl. Its pods are cheap."""

from __future__ import annotations

import os
import signal

import pytest
from acjobs_on_nodes import Jobs, a_job, waiting_for
from by_kubectl import last
from onecluster import OneCluster, onward_local


def test_from_apply_to_delete(acjobs: Jobs, tmp_path: object) -> None:
    done = f"{tmp_path}/done"
    acjobs.apply(a_job("life", waiting_for(done), labels={"fault-scheduling": "grace", "fault-retry-times": "3"}))
    acjobs.state("life", "Running")
    assert acjobs.kubectl("get", "acjob", "life", "--no-headers").split()[:2] == ["life", "Running"]
    first = acjobs.uids("life")
    assert sorted(first) == ["life-master-0", "life-worker-0"]
    assert "rank 1 of 2 at 10." in acjobs.kubectl("logs", "life-worker-0")

    os.kill(acjobs.cluster.pids("life-worker-0")[0], signal.SIGKILL)  # a pod is killed
    acjobs.until("life", lambda s: last(s)["type"] == "Running" and s["restarts"] == 1, "it runs again")
    second = acjobs.uids("life")
    assert not set(first.values()) & set(second.values()), "nobody inside goes on: all start again"
    said = "jobRestarting: Job default/life is unconditional retry job and remain retry times is <3>."
    acjobs.cluster.event("life", said)

    os.kill(acjobs.cluster.part("operator"), signal.SIGKILL)
    acjobs.kubectl("delete", "pod", "life-master-0")  # while nobody looks
    acjobs.until("life", lambda s: last(s)["type"] == "Running" and s["restarts"] == 2, "and again")

    open(done, "w").close()
    status = acjobs.state("life", "Succeeded")
    assert status["replicaStatuses"] == {"Master": {"succeeded": 1}, "Worker": {"succeeded": 1}}
    assert acjobs.latest("life") == status["conditions"][-1]
    kept = {p["status"]["phase"] for p in acjobs.pods("life")}
    assert kept == {"Succeeded"}, "what has ended stays, for its logs"
    acjobs.kubectl("delete", "acjob", "life")
    acjobs.gone("life")


def test_a_job_that_fails_says_so_three_times_over(acjobs: Jobs) -> None:
    """The queries of the seed, for a job that has failed."""
    acjobs.apply(a_job("bad", ["sh", "-c", "sleep 1; exit 3"]))
    acjobs.state("bad", "Failed")
    whole = acjobs.kubectl("get", "acjob", "-n", "default", "bad", "-o", "yaml")
    assert "message: Job default/bad has failed because has pod failed." in whole
    short = acjobs.kubectl("get", "acjob", "-n", "default", "bad", "-o", "jsonpath={.status.conditions}")
    assert '"reason":"JobFailed"' in short
    assert acjobs.latest("bad")["type"] == "Failed"
    acjobs.kubectl("delete", "acjob", "bad")
    acjobs.gone("bad")


@pytest.mark.nightly
def test_a_node_dies_and_its_pod_begins_elsewhere(acjobs: Jobs, cluster: OneCluster, tmp_path: object) -> None:
    done = f"{tmp_path}/done"
    policy = {"recover-strategy": "recover"}
    acjobs.apply(a_job("moved", waiting_for(done), labels={"fault-scheduling": "force"}, notes=policy))
    acjobs.state("moved", "Running")
    before = {p["metadata"]["name"]: p for p in acjobs.pods("moved")}
    bad = before["moved-worker-0"]["spec"]["nodeName"]
    onward_local("chaos", "stop", bad, state=cluster.state)
    try:
        acjobs.until("moved", lambda s: last(s)["type"] == "Running" and s["restarts"] == 1, "it runs again")
        after = {p["metadata"]["name"]: p for p in acjobs.pods("moved")}
        assert after["moved-worker-0"]["spec"]["nodeName"] != bad
        assert after["moved-master-0"]["metadata"]["uid"] == before["moved-master-0"]["metadata"]["uid"]
        open(done, "w").close()
        acjobs.state("moved", "Succeeded")
    finally:
        onward_local("chaos", "start", bad, state=cluster.state)
    acjobs.kubectl("delete", "acjob", "moved")
    acjobs.gone("moved")


@pytest.mark.nightly
@pytest.mark.parametrize("verb", ["suspend", "deadline"])
def test_its_time(acjobs: Jobs, tmp_path: object, verb: str) -> None:
    done = f"{tmp_path}/done"
    run = {"activeDeadlineSeconds": 3} if verb == "deadline" else {}
    acjobs.apply(a_job(verb, waiting_for(done), **run))
    acjobs.state(verb, "Running")
    if verb == "deadline":
        acjobs.state(verb, "Failed")
        assert "activeDeadlineSeconds" in acjobs.latest(verb)["message"]
        acjobs.cluster.until(lambda: not acjobs.pods(verb), "its pods are ended")
    else:
        acjobs.kubectl("patch", "acjob", verb, "--type=merge", "-p", '{"spec":{"runPolicy":{"suspend":true}}}')
        acjobs.cluster.until(lambda: not acjobs.pods(verb), "no pods while it is suspended")
        assert acjobs.latest(verb)["reason"] == "JobSuspended"
        acjobs.kubectl("patch", "acjob", verb, "--type=merge", "-p", '{"spec":{"runPolicy":{"suspend":false}}}')
        acjobs.state(verb, "Running")
    acjobs.kubectl("delete", "acjob", verb)
    acjobs.gone(verb)
