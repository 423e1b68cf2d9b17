"""Operator and manager are killed in the middle of each policy: what it does comes out the same, and counts nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from acjobs_on_nodes import Jobs
from by_kubectl import Obj, last
from onecluster import OneCluster, onward_local
from trained import START_S, Trained

pytestmark = [pytest.mark.torch, pytest.mark.nightly, pytest.mark.timeout(900)]
KILL_MANAGER = "kind=kill-manager,when=recovery"
STEPS = 400  # an operator that was killed must still find the job at work


def in_the_middle(acjobs: Jobs, job: Trained, fault: Callable[[], object]) -> None:
    """The manager dies as soon as a recovery is under way, the operator with the fault."""
    acjobs.inject(job.master, KILL_MANAGER)
    operator = acjobs.cluster.part("operator")
    fault()
    os.kill(operator, signal.SIGKILL)


def both_were_killed(acjobs: Jobs, job: Trained, operator: int) -> None:
    assert acjobs.cluster.part("operator") != operator
    assert "the manager ended (SIGKILL)" in acjobs.kubectl("logs", job.master)


KILLS = [(policy, "kill") for policy in ("recover-in-place", "recover", "dump", "exit")]


@pytest.mark.parametrize(("policy", "fault"), [("retry", "raise"), ("recover", "delete"), *KILLS])
def test_operator_and_manager_are_killed_in_the_middle(
    acjobs: Jobs, tmp_path: Path, calm: Callable[[int], Path], policy: str, fault: str
) -> None:
    """A rank raises an error, or is killed, or its pod is deleted."""
    name = f"bare-{policy}-{fault}"
    flags = ("--dump-dir", str(tmp_path / "dumps")) if policy == "dump" else ()
    job = Trained(acjobs, name, tmp_path, policy, flags=flags, steps=STEPS)
    job.trains(step=10)
    faults: dict[str, Callable[[], object]] = {
        "raise": lambda: acjobs.inject(job.worker, "kind=exception,rank=1"),
        "delete": lambda: acjobs.kubectl("delete", "pod", job.worker, "--wait=false"),
        "kill": lambda: os.kill(job.ranks[job.worker][1], signal.SIGKILL),
    }
    operator = acjobs.cluster.part("operator")
    in_the_middle(acjobs, job, faults[fault])
    story = job.mended(f": {policy}")
    assert story["restarts"] == 0, "what the job mends by itself costs nothing"
    both_were_killed(acjobs, job, operator)
    assert job.new_pods() == ({job.worker} if policy == "recover" else set())
    everybody, other = {job.master, job.worker}, {job.worker}
    fresh = {"retry": set(), "recover-in-place": other, "recover": other, "dump": everybody, "exit": everybody}
    assert job.new_processes() == fresh[policy]
    job.ends_like(calm, each_once=policy != "exit")


@pytest.mark.parametrize("leader", [False, True])
@pytest.mark.parametrize("moment", ["made", "swap", "swapped"])
def test_operator_and_manager_are_killed_in_the_middle_of_a_hot_switch(
    acjobs: Jobs, cluster: OneCluster, tmp_path: Path, moment: str, leader: bool
) -> None:
    """As soon as the stand-in is made; at the swap; when the stand-in has taken over and the old pod is to go."""
    name = f"hot-{moment}-{'m' if leader else 'w'}"
    labels = {"fault-scheduling": "grace", "subHealthyStrategy": "hotSwitch"}
    job = Trained(acjobs, name, tmp_path, "recover", labels=labels, steps=900)
    job.trains(step=10)
    sick, well = (job.master, job.worker) if leader else (job.worker, job.master)
    stand_in, node, operator = f"{sick}-hot", job.node(sick), cluster.part("operator")
    if moment != "made":
        acjobs.inject(job.master, KILL_MANAGER)
    onward_local("chaos", "sub-health", node, state=cluster.state)
    try:
        acjobs.wait(lambda: stand_in in acjobs.uids(name), "the stand-in is made", START_S)
        uid = acjobs.uids(name)[stand_in]
        if moment == "made":
            os.kill(acjobs.manager(job.master), signal.SIGKILL)
        elif moment == "swapped":
            job.mended("hot-switch")
        os.kill(operator, signal.SIGKILL)
        story = job.mended("hot-switch")
        assert (last(story)["type"], story["restarts"]) == ("Running", 0)
        acjobs.wait(lambda: acjobs.uids(name) == {well: job.uids[well], stand_in: uid}, "the old pod is gone", START_S)
        assert acjobs.ranks(well) == job.ranks[well], "the others keep their processes"
        assert cluster.part("operator") != operator
    finally:
        onward_local("chaos", "heal", node, state=cluster.state)
    for pod in (well, stand_in):
        far = job.so_far(pod)[-1]
        acjobs.wait(lambda pod=pod, far=far: job.so_far(pod)[-1] > far + 3, f"{pod} trains on")
    job.is_removed()


def has(status: Obj, kind: str, value: str) -> bool:
    return any(c["type"] == kind and c["status"] == value for c in status.get("conditions") or [])


@pytest.mark.parametrize("policies", ["elastic-training", "recover,elastic-training"])
def test_with_nowhere_to_go_the_others_train_on_and_grow_back(acjobs: Jobs, tmp_path: Path, policies: str) -> None:
    """Operator and manager are killed while it shrinks, and once more while it is shrunk."""
    notes = {"wait-reschedule-timeout": "5"} if "recover" in policies else {}
    alone = {"schedulingPolicy": {"minAvailable": 1}}
    job = Trained(acjobs, "shrunk", tmp_path, policies, script="elastic", steps=400, notes=notes, **alone)
    job.trains()
    others = [n for n in ("node-1", "node-2", "node-3") if n != job.node(job.master)]
    acjobs.kubectl("cordon", *others)
    try:
        operator = acjobs.cluster.part("operator")
        in_the_middle(acjobs, job, lambda: acjobs.kubectl("delete", "pod", job.worker))
        status = acjobs.until("shrunk", lambda s: has(s, "Degraded", "True"), "it goes on with fewer", START_S)
        assert last(status)["type"] == "Restarting", "a pod is missing, and is being made anew"
        both_were_killed(acjobs, job, operator)
        os.kill(acjobs.cluster.part("operator"), signal.SIGKILL)
        os.kill(acjobs.manager(job.master), signal.SIGKILL)
        far = max(acjobs.steps(job.master))
        acjobs.wait(lambda: max(acjobs.steps(job.master)) > far + 3, "it trains", START_S)
    finally:
        acjobs.kubectl("uncordon", *others)
    acjobs.until("shrunk", lambda s: has(s, "Degraded", "False"), "it has grown back", START_S)
    assert acjobs.state("shrunk", "Running")["restarts"] == 0
    assert acjobs.ranks(job.master) == job.ranks[job.master]
    job.ends_well(each_once=False)
