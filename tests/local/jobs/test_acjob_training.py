"""Real training in the pods of an AscendJob, with faults. Checked: uids, pids, steps, the last state, events."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from acjobs_on_nodes import Jobs, a_job, training
from by_kubectl import last
from kernel import alive
from onecluster import OneCluster, onward_local
from trained import ENDS_S, START_S, Trained

pytestmark = [pytest.mark.torch]
Calm = Callable[[int], Path]


def test_a_rank_is_killed_and_then_a_pod_is_deleted(acjobs: Jobs, tmp_path: Path, calm: Calm) -> None:
    """`recover-in-place`: no pod changes, one process does. `recover`: one pod does, and no process of the other."""
    job = Trained(acjobs, "mended", tmp_path, "recover-in-place,recover")
    job.trains()
    os.kill(job.ranks[job.worker][1], signal.SIGKILL)
    story = job.mended("recover-in-place")
    assert story["lastIncident"].startswith("rank 1 killed (SIGKILL): recover-in-place")
    assert last(story)["type"] == "Running"
    assert job.new_pods() == set()
    assert job.new_processes() == {job.worker}

    acjobs.kubectl("delete", "pod", job.worker)
    story = job.mended("lost with node 1")
    assert story["restarts"] == 0, "a recovery that keeps the job running costs nothing"
    assert job.new_pods() == job.new_processes() == {job.worker}
    for words in ("Recovering: rank 1 killed", "Recovered: rank 1 killed", "Recovered: rank 1 lost with node 1"):
        acjobs.cluster.event("mended", words)
    acjobs.cluster.event("mended", "jobRestarting: ")
    job.ends_like(calm)


def test_a_job_of_one_pod_shows_what_happens_in_it_and_moves_while_it_trains(
    acjobs: Jobs, cluster: OneCluster, tmp_path: Path
) -> None:
    command = training("tests/scripts/paced.py", "--steps", "2000", "--pace", "0.1")
    labels, notes = {"subHealthyStrategy": "hotSwitch"}, {"recover-strategy": "recover-in-place,recover"}
    acjobs.apply(a_job("only", command, workers=0, labels=labels, notes=notes))
    acjobs.wait(lambda: acjobs.steps("only-master-0")[-1:] > [3], "it trains", START_S)
    os.kill(acjobs.ranks("only-master-0")[0], signal.SIGKILL)
    acjobs.until("only", lambda s: "killed (SIGKILL)" in s.get("lastIncident", ""), "its incident is shown", START_S)
    cluster.event("only", "Recovered: rank 0 killed")
    node = acjobs.pods("only")[0]["spec"]["nodeName"]
    onward_local("chaos", "sub-health", node, state=cluster.state)
    try:
        story = acjobs.until("only", lambda s: "hot-switch" in s.get("lastIncident", ""), "it has moved", START_S)
        assert (last(story)["type"], story["restarts"]) == ("Running", 0)
        acjobs.wait(lambda: set(acjobs.uids("only")) == {"only-master-0-hot"}, "the old pod is gone", START_S)
    finally:
        onward_local("chaos", "heal", node, state=cluster.state)
    steps = acjobs.steps("only-master-0-hot")
    assert steps == list(range(steps[0], steps[-1] + 1)), "each step counts once"
    acjobs.kubectl("delete", "acjob", "only")
    acjobs.gone("only")


@pytest.mark.nightly
@pytest.mark.parametrize("leader", [False, True])
def test_a_rank_is_killed_that_may_only_be_replaced_elsewhere(
    acjobs: Jobs, tmp_path: Path, calm: Calm, leader: bool
) -> None:
    """`recover` without `recover-in-place`: its pod is made anew on another node, and nothing else."""
    job = Trained(acjobs, "moved", tmp_path, "recover", steps=200)
    job.trains()
    pod, rank = (job.master, 0) if leader else (job.worker, 1)
    nodes = {name: job.node(name) for name in job.pods}
    os.kill(job.ranks[pod][rank], signal.SIGKILL)
    story = job.mended(f"rank {rank} killed (SIGKILL): recover, ")
    assert story["restarts"] == 0
    assert job.new_pods() == job.new_processes() == {pod}
    assert job.node(pod) not in nodes.values(), "on a node of its own, and not the one where it was"
    acjobs.cluster.event("moved", f"Recovering: rank {rank} killed (SIGKILL); node {rank} is given up; another node")
    acjobs.state("moved", "Running")
    found_by_a_newcomer(acjobs, job, job.master)
    job.ends_like(calm)


def found_by_a_newcomer(acjobs: Jobs, job: Trained, leader: str) -> None:
    """The service leads to whoever leads now, and to nobody else; a pod that comes later finds the others."""
    (address,) = [p["status"]["podIP"] for p in acjobs.pods(job.name) if p["metadata"]["name"] == leader]
    where = ("endpoints", job.master, "-o", "jsonpath={.subsets[*]['addresses','notReadyAddresses'][*].ip}")
    acjobs.wait(lambda: acjobs.kubectl("get", *where).split() == [address], f"the service leads to {leader}")
    stays, before = acjobs.ranks(leader), acjobs.status(job.name)["record"]["closed"]
    acjobs.kubectl("delete", "pod", job.worker)
    mended = lambda s: s["record"].get("closed", 0) > before and "lost with node" in s["lastIncident"]  # noqa: E731
    acjobs.until(job.name, mended, "it is replaced", START_S)
    assert acjobs.ranks(leader) == stays, "its process is the one that it was"


@pytest.mark.nightly
def test_after_a_hot_switch_of_rank_0_its_service_leads_to_the_stand_in(
    acjobs: Jobs, cluster: OneCluster, tmp_path: Path
) -> None:
    labels = {"fault-scheduling": "grace", "subHealthyStrategy": "hotSwitch"}
    job = Trained(acjobs, "led", tmp_path, "recover", labels=labels, steps=900)
    job.trains()
    node, stand_in = job.node(job.master), f"{job.master}-hot"
    onward_local("chaos", "sub-health", node, state=cluster.state)
    try:
        acjobs.wait(lambda: set(acjobs.uids("led")) == {stand_in, job.worker}, "the old pod is gone", START_S)
        found_by_a_newcomer(acjobs, job, stand_in)
        job.so_far(stand_in)
    finally:
        onward_local("chaos", "heal", node, state=cluster.state)
    job.is_removed()


@pytest.mark.nightly
def test_hot_switch(acjobs: Jobs, cluster: OneCluster, tmp_path: Path) -> None:
    """A node is called sub-healthy: a pod on another gets ready beside its pod, and takes over at the end of a step."""
    labels = {"fault-scheduling": "grace", "subHealthyStrategy": "hotSwitch"}
    job = Trained(acjobs, "switched", tmp_path, "recover", labels=labels, steps=900)
    job.trains()
    node = job.node(job.worker)
    onward_local("chaos", "sub-health", node, state=cluster.state)
    try:
        story = job.mended("hot-switch")
        assert (last(story)["type"], story["restarts"]) == ("Running", 0)
        stand_in = f"{job.worker}-hot"
        acjobs.wait(lambda: set(acjobs.uids("switched")) == {job.master, stand_in}, "the old pod is gone", START_S)
        assert next(p for p in acjobs.pods("switched") if p["metadata"]["name"] == stand_in)["spec"]["nodeName"] != node
        assert acjobs.uids("switched")[job.master] == job.uids[job.master]
        assert acjobs.ranks(job.master) == job.ranks[job.master], "the others keep their processes"
        cluster.event("switched", "StandIn: ")
    finally:
        onward_local("chaos", "heal", node, state=cluster.state)
    acjobs.state("switched", "Succeeded", ENDS_S)
    acjobs.kubectl("delete", "acjob", "switched")
    acjobs.gone("switched")


@pytest.mark.nightly
def test_the_pod_of_rank_0_is_deleted(acjobs: Jobs, tmp_path: Path, calm: Calm) -> None:
    """With it go the leader, the manager and the store: the other pod keeps its process all the same."""
    job = Trained(acjobs, "first", tmp_path, "recover")
    job.trains()
    acjobs.kubectl("delete", "pod", job.master)
    assert job.mended("lost with node 0")["restarts"] == 0
    assert job.new_pods() == job.new_processes() == {job.master}
    job.ends_like(calm)


@pytest.mark.nightly
def test_the_pod_of_rank_0_is_deleted_before_it_has_begun(acjobs: Jobs, tmp_path: Path, calm: Calm) -> None:
    """The others find the new one, wherever they had looked before."""
    job = Trained(acjobs, "early", tmp_path, "recover", labels={"fault-scheduling": "grace", "fault-retry-times": "3"})
    acjobs.wait(lambda: [p["status"]["phase"] for p in acjobs.pods("early")] == ["Running"] * 2, "its pods run")
    acjobs.kubectl("delete", "pod", job.master)
    job.trains()
    assert acjobs.status("early")["restarts"] <= 1
    job.ends_like(calm)


@pytest.mark.nightly
def test_the_other_pod_is_deleted_too_before_the_first_is_replaced(acjobs: Jobs, tmp_path: Path, calm: Calm) -> None:
    """Nobody is left who knows where the job was: it begins anew, once, and that is counted."""
    job = Trained(acjobs, "both", tmp_path, "recover", labels={"fault-scheduling": "grace", "fault-retry-times": "3"})
    job.trains()
    acjobs.kubectl("delete", "pod", job.worker)
    acjobs.kubectl("delete", "pod", job.master)
    acjobs.until("both", lambda s: s["restarts"] == 1 and last(s)["type"] == "Running", "it begins anew", START_S)
    job.ends_like(calm, each_once=False)


@pytest.mark.nightly
def test_all_pods_fail_in_the_same_second(acjobs: Jobs, cluster: OneCluster, tmp_path: Path, calm: Calm) -> None:
    """Nobody is left who could go on: the job begins anew, and that is one wave."""
    labels = {"fault-scheduling": "grace", "fault-retry-times": "3"}
    job = Trained(acjobs, "crashed", tmp_path, "recover", labels=labels)
    job.trains()
    for agent in [cluster.pids(pod)[0] for pod in job.pods]:
        os.kill(agent, signal.SIGKILL)
    acjobs.until("crashed", lambda s: s["restarts"] == 1 and last(s)["type"] == "Running", "it begins anew", START_S)
    assert job.new_pods() == set(job.pods)
    cluster.event("crashed", "is unconditional retry job and remain retry times is <3>")
    job.ends_like(calm, each_once=False)


@pytest.mark.nightly
def test_a_job_that_is_deleted_while_it_recovers_leaves_nothing(
    acjobs: Jobs, cluster: OneCluster, tmp_path: Path
) -> None:
    job = Trained(acjobs, "dropped", tmp_path, "recover", steps=900)
    job.trains()
    processes = [pid for pod in job.pods for pid in cluster.pids(pod)]
    nodes = [n["metadata"]["name"] for n in acjobs.listed("nodes")]
    acjobs.kubectl("cordon", *nodes)  # so that nobody takes the place of the pod that is given up
    try:
        os.kill(job.ranks[job.worker][1], signal.SIGKILL)
        cluster.event("dropped", "Recovering: rank 1 killed (SIGKILL); node 1 is given up")
        acjobs.wait(lambda: acjobs.uids("dropped").get(job.worker) != job.uids[job.worker], "its pod is made anew")
        assert last(acjobs.status("dropped"))["type"] == "Restarting"
        job.is_removed()
        assert [pid for pid in processes if alive(pid)] == []
    finally:
        acjobs.kubectl("uncordon", *nodes)


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


@pytest.mark.nightly
def test_the_node_of_rank_0_is_cut_off(acjobs: Jobs, cluster: OneCluster, tmp_path: Path) -> None:
    """It has the manager and two of three votes. The operator takes its pod away, and says so to the others."""
    job = Trained(acjobs, "cut", tmp_path, "recover", steps=300, labels={"fault-scheduling": "force"})
    job.trains()
    bad = job.node(job.master)
    onward_local("chaos", "partition", bad, state=cluster.state)
    try:
        job.mended("lost with node 0")
        assert acjobs.ranks(job.worker) == job.ranks[job.worker]
    finally:
        onward_local("chaos", "heal", bad, state=cluster.state)
    job.ends_well()
