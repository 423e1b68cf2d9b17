"""Jobs that lose pods, end, and are edited: `stories` says who tells it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stories import fails, runs, said, submit, tell, uids, waves
from waiting import until_async
from world import Fate, World, a_job

from onward.api.pods import OPERATOR_NAME
from onward.kube.access import Access
from onward.kube.objects import CONFIGMAPS, NODES, PODS, SECRETS, SERVICES, name_of, uid_of
from onward.operator import ranktables

# ---------------------------------------------------------------------------------------------------- losses


def test_a_failed_pod_without_retry_is_the_end(real: Access) -> None:
    async def story(world: World) -> None:
        await submit(world, a_job("job"))
        await runs(world)
        world.end("job-worker-0", 3)
        await fails(world, "Job NS/job has failed because has pod failed.")
        await world.until(lambda: len(world.own_pods()) == 1, "the others are ended: a failed job holds nothing")
        assert world.pod("job-worker-0")["status"]["phase"] == "Failed", "what failed stays, for its logs"

    tell(real, story)


def test_all_pods_fail_in_the_same_second_and_the_budget_counts_one(real: Access) -> None:
    async def story(world: World) -> None:
        await submit(world, a_job("job", labels={"fault-retry-times": "1"}))
        await runs(world)
        for pod in world.own_pods():
            world.ends[uid_of(pod)] = 1
        await runs(world, restarts=1)
        words = f"Job {world.namespace}/job is unconditional retry job and remain retry times is <1>."
        await said(world, f"jobRestarting: {words}")
        for pod in world.own_pods():
            world.ends[uid_of(pod)] = 1
        await fails(world, "Job NS/job has failed because pod failed and remain retry times is 0.")

    tell(real, story)


def test_a_label_by_which_things_are_found_is_put_back(real: Access) -> None:
    """Else they are there for the server, and not for the operator, which would ask the one again and again."""
    fate = Fate()
    gone = {"metadata": {"labels": {OPERATOR_NAME: None}}}

    async def story(world: World) -> None:
        await submit(world, a_job("job"))
        await runs(world)
        before = uids(world)
        await world.client.patch(SERVICES, "job-master-0", gone, world.namespace)
        await world.client.patch(PODS, "job-worker-0", gone, world.namespace)

        async def back() -> bool:
            service = await world.client.get(SERVICES, "job-master-0", world.namespace)
            both = (service, world.pod("job-worker-0"))
            return all(OPERATOR_NAME in each["metadata"]["labels"] for each in both)

        await until_async(back, "the labels are back")
        world.end("job-worker-0", 3)
        await fails(world, "Job NS/job has failed because has pod failed.")
        assert uids(world).items() <= before.items()
        asked = [path for method, path, _ in fate.asked if method == "GET" and path.endswith("/job-worker-0")]
        assert len(asked) < 10

    tell(real, story, fate)


def test_the_backoff_limit(real: Access) -> None:
    async def story(world: World) -> None:
        await submit(world, a_job("job", backoffLimit=1))
        await runs(world)
        await world.client.delete(PODS, "job-master-0", world.namespace)
        await runs(world, restarts=1)
        await world.client.delete(PODS, "job-worker-1", world.namespace)
        await fails(world, "Job job has failed because it has reached the specified backoff limit")

    tell(real, story)


@pytest.mark.nightly
def test_exit_codes_that_pass_and_that_do_not(real: Access) -> None:
    async def story(world: World) -> None:
        job = a_job("job")
        for role in job["spec"]["replicaSpecs"].values():
            role["restartPolicy"] = "ExitCode"
        await submit(world, job)
        await runs(world)
        before = uids(world)
        assert world.pod("job-worker-0")["spec"]["restartPolicy"] == "Never"
        world.end("job-worker-0", 143)
        await runs(world, restarts=1)
        after = uids(world)
        assert {name for name in after if after[name] != before[name]} == {"job-worker-0"}, "only that one"
        await said(world, "jobRestarting: Job job is restarting because Worker replica(s) failed.")
        world.end("job-worker-0", 1)
        await fails(world, "Job NS/job has failed because has pod failed.")

    tell(real, story)


@pytest.mark.nightly
def test_fault_scheduling_off_replaces_nothing(real: Access) -> None:
    async def story(world: World) -> None:
        await submit(world, a_job("job", labels={"fault-scheduling": "off", "fault-retry-times": "3"}))
        await runs(world)
        await world.client.delete(PODS, "job-worker-0", world.namespace)
        await fails(world, "Job NS/job has failed because has pod failed.")

    tell(real, story)


NIGHTLY = pytest.mark.nightly


HOW = ["not ready", pytest.param("deleted", marks=NIGHTLY), pytest.param("faulty", marks=NIGHTLY)]


@pytest.mark.parametrize("how", HOW)
def test_only_the_pod_of_a_bad_node_is_replaced_elsewhere(real: Access, how: str) -> None:
    async def story(world: World) -> None:
        await submit(
            world, a_job("job", labels={"fault-scheduling": "force"}, annotations={"recover-strategy": "recover"})
        )
        await runs(world)
        before, bad = uids(world), str(world.pod("job-worker-1")["spec"]["nodeName"])
        if how == "not ready":
            await world.lose(bad)
        elif how == "deleted":
            world.dead.add(bad)
            await world.client.delete(NODES, bad)
        else:
            patch = {"metadata": {"annotations": {"onward.dev/fault": "fan broken"}}, "spec": {"unschedulable": True}}
            await world.client.patch(NODES, bad, patch)
        await runs(world, restarts=1)
        after, pod = uids(world), world.pod("job-worker-1")
        assert {name for name in after if after[name] != before[name]} == {"job-worker-1"}
        assert pod["spec"]["nodeName"] != bad
        assert pod["metadata"]["annotations"]["onward.dev/avoid-nodes"] == bad
        assert pod["metadata"]["labels"]["version"] == "1"

    tell(real, story)


# ---------------------------------------------------------------------------------------------------- its time


@pytest.mark.nightly
def test_the_deadline_and_the_time_after_it(real: Access) -> None:
    async def story(world: World) -> None:
        await submit(world, a_job("job", activeDeadlineSeconds=12, ttlSecondsAfterFinished=2))
        await runs(world)
        await fails(world, "Job NS/job has failed because it was active longer than activeDeadlineSeconds, 12 s")
        await world.until(lambda: not world.own_pods(), "its pods are ended")
        await world.until(lambda: not world.job("job"), "it is deleted")

    tell(real, story)


def test_what_is_wrong_is_told_at_once_and_goes_when_its_time_is_over(real: Access) -> None:
    async def story(world: World) -> None:
        job = a_job("job", ttlSecondsAfterFinished=3)
        job["metadata"]["labels"] = {"fault-scheduling": "maybe"}
        job["spec"]["successPolicy"] = "Some"
        await submit(world, job)
        await world.until(lambda: world.state("job") == "Failed", "it fails")
        condition = world.condition("job")
        assert condition["reason"] == "JobValidFailed"
        reasons = ("InvalidSuccessPolicy", "InvalidFramework", "InvalidFaultScheduling")
        assert all(f"{reason}: " in condition["message"] for reason in reasons)
        for reason in reasons:
            await said(world, f"{reason}: ")
        assert not world.own_pods()
        await world.until(lambda: not world.job("job"), "it is deleted")

    tell(real, story)


@pytest.mark.parametrize(("policy", "left"), [pytest.param("Running", 3, marks=NIGHTLY), ("None", 3), ("All", 0)])
def test_what_is_left_of_a_job_that_has_succeeded(real: Access, policy: str, left: int) -> None:
    async def story(world: World) -> None:
        await submit(world, a_job("job", cleanPodPolicy=policy))
        await runs(world)
        for pod in world.own_pods():
            world.ends[uid_of(pod)] = 0
        await world.until(lambda: world.state("job") == "Succeeded", "it succeeds")
        await world.until(lambda: not list(world.groups), "its PodGroup is gone")
        await world.until(lambda: len(world.own_pods()) == left, f"{left} pods are left")
        status = world.job("job")["status"]
        assert status["replicaStatuses"] == {"Master": {"succeeded": 1}, "Worker": {"succeeded": 2}}
        assert (status["ready"], bool(status["completionTime"])) == ("3/3", True)

    tell(real, story)


# ---------------------------------------------------------------------------------------------------- edits


def test_another_number_of_pods_is_another_set_of_pods(real: Access) -> None:
    async def story(world: World) -> None:
        await submit(world, a_job("job"))
        await runs(world)
        await world.edit("job", {"spec": {"replicaSpecs": {"Worker": {"replicas": 3}}}})
        await world.until(lambda: len(world.own_pods()) == 4 and world.state("job") == "Running", "four run")
        assert set(waves(world).values()) == {"1"}, "all of them know how many there are"
        await world.until(lambda: [g["spec"]["minMember"] for g in world.groups] == [4], "the gang too")
        await world.edit("job", {"spec": {"replicaSpecs": {"Worker": {"replicas": 1}}}})
        await world.until(lambda: len(world.own_pods()) == 2 and world.state("job") == "Running", "two run")
        await world.edit("job", {"spec": {"replicaSpecs": {"Worker": None}}})
        await world.until(lambda: len(world.own_pods()) == 1 and world.state("job") == "Running", "one runs")
        await world.until(lambda: [g["spec"]["minTaskMember"] for g in world.groups] == [{"master": 1}], "alone")
        assert world.restarts("job") == 0, "nothing was lost"

    tell(real, story)


@NIGHTLY
def test_a_new_template_is_for_pods_that_are_made_from_now_on(real: Access) -> None:
    async def story(world: World) -> None:
        await submit(world, a_job("job", annotations={"recover-strategy": "recover"}))
        await runs(world)
        before = uids(world)
        job = a_job("job")
        container = {"name": "ascend", "image": "new", "command": ["sleep", "600"]}
        job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"] = [container]
        await world.edit("job", {"spec": {"replicaSpecs": job["spec"]["replicaSpecs"]}})
        await world.client.delete(PODS, "job-worker-1", world.namespace)
        await runs(world, restarts=1)
        images = {name_of(p): p["spec"]["containers"][0]["image"] for p in world.own_pods()}
        assert images["job-worker-1"] == "new"
        assert uids(world)["job-worker-0"] == before["job-worker-0"]

    tell(real, story)


@NIGHTLY
def test_an_edit_that_makes_no_sense_ends_the_job(real: Access) -> None:
    async def story(world: World) -> None:
        await submit(world, a_job("job"))
        await runs(world)
        await world.edit("job", {"metadata": {"labels": {"framework": "caffe"}}})
        await world.until(lambda: world.condition("job").get("reason") == "JobValidFailed", "it fails")
        await world.until(lambda: not world.own_pods(), "its pods are ended")

    tell(real, story)


# ---------------------------------------------------------------------------------------------------- and else


def test_a_pod_holds_no_token_of_the_api_and_a_secret_of_its_own(real: Access) -> None:
    async def story(world: World) -> None:
        await submit(world, a_job("job", annotations={"recover-strategy": "recover"}))
        await runs(world)
        pod = world.pod("job-master-0")
        assert pod["spec"]["automountServiceAccountToken"] is False
        secret = await world.client.get(SECRETS, "job-onward", world.namespace)
        await world.client.delete(SECRETS, "job-onward", world.namespace)
        assert secret["metadata"]["ownerReferences"][0]["name"] == "job"
        await world.client.delete(PODS, "job-worker-0", world.namespace)
        await runs(world, restarts=1)
        again = await world.client.get(SECRETS, "job-onward", world.namespace)
        assert again["data"] == secret["data"], "those that stayed know the same one"

    tell(real, story)


def test_the_rank_table_fills_the_users_config_map(real: Access) -> None:
    async def story(world: World) -> None:
        await world.client.create(CONFIGMAPS, {"metadata": {"name": "rings-config-job"}}, world.namespace)
        await submit(world, a_job("job"))
        await runs(world)

        async def completed() -> dict[str, Any]:
            found = await world.client.get(CONFIGMAPS, "rings-config-job", world.namespace)
            table: dict[str, Any] = json.loads((found.get("data") or {}).get("hccl.json") or "{}")
            return table if table.get("status") == "completed" else {}

        done = await until_async(completed, "the table is complete", 30.0)
        assert done["server_count"] == "3"
        assert [d["rank_id"] for s in done["server_list"] for d in s["device"]] == ["0", "1", "2"]

    tell(real, story)


def test_the_rank_table_is_a_file_as_soon_as_it_can_be_written(
    real: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranktables, "AGAIN_S", 0.2)
    root = tmp_path / "ranktable"
    root.write_text("not a directory")
    job = a_job("job")
    job["spec"]["replicaSpecs"]["Master"]["template"]["spec"]["volumes"] = [{"name": "ranktable", "emptyDir": {}}]

    async def story(world: World) -> None:
        await submit(world, job)
        await runs(world)
        await said(world, f"RankTableFailed: the rank table cannot be written to {root}")
        root.unlink()
        file = root / f"{world.namespace}.job" / "hccl.json"
        done = '"status": "completed"'
        await world.until(lambda: file.exists() and done in file.read_text(), "the table is complete")
        table = json.loads(file.read_text())
        assert [d["rank_id"] for s in table["server_list"] for d in s["device"]] == ["0", "1", "2"]
        assert file.stat().st_mode & 0o777 == 0o644
        assert (file.parent / "version").read_text().isdecimal()

    tell(real, story, rank_tables=str(root))


@NIGHTLY
def test_a_name_that_is_taken_keeps_only_its_own_pod_away(real: Access) -> None:
    async def story(world: World) -> None:
        taken = {"metadata": {"name": "job-worker-0"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
        made = await world.client.create(PODS, taken, world.namespace)
        await submit(world, a_job("job", workers=6))
        await world.until(lambda: len(world.own_pods()) == 6, "the others are made")
        await world.until(lambda: world.condition("job").get("reason") == "PodCreateFailed", "and it is said")
        assert "job-worker-0 exists already and belongs to nobody" in world.condition("job")["message"]
        left = await world.client.get(PODS, "job-worker-0", world.namespace)
        assert uid_of(left) == uid_of(made)
        await world.client.delete(PODS, "job-worker-0", world.namespace, {"gracePeriodSeconds": 0})
        await runs(world)

    tell(real, story)
