"""Jobs and namespaces that are deleted while something goes on."""

from __future__ import annotations

import asyncio

from stories import runs, submit, tell, uids
from waiting import until_async
from world import World, a_job, end

from onward.core.reconcile import decide
from onward.kube.access import Access
from onward.kube.objects import NAMESPACES, SECRETS, SERVICES, name_of, uid_of
from onward.operator.eyes import JOBS, Eyes


def test_a_job_that_is_deleted_while_it_recovers_leaves_nothing(real: Access) -> None:
    async def story(world: World) -> None:
        await submit(world, a_job("job", labels={"fault-retry-times": "3"}))
        await runs(world)
        world.end("job-worker-0", 1)
        await world.until(lambda: world.state("job") == "Restarting", "it restarts")
        await world.client.delete(JOBS, "job", world.namespace, {"propagationPolicy": "Foreground"})
        await world.until(lambda: not world.job("job") and not world.own_pods(), "all is gone")
        for resource in (SERVICES, SECRETS):
            left = (await world.client.list(resource, world.namespace))["items"]
            assert not [o for o in left if o["metadata"].get("ownerReferences")]

    tell(real, story)


def test_nothing_is_made_for_a_job_that_is_deleted_while_it_recovers(real: Access) -> None:
    """Its deletion is held up by a pod that takes its time; meanwhile places are vacant that it would have filled."""

    async def story(world: World) -> None:
        await submit(world, a_job("job", labels={"fault-retry-times": "3"}))
        await runs(world)
        world.dead.add(str(world.pod("job-master-0")["spec"]["nodeName"]))
        world.end("job-worker-0", 1)
        others = ("job-worker-0", "job-worker-1")

        def runs_again(name: str) -> bool:
            phase = (world.pod(name).get("status") or {}).get("phase")
            return len(world.created[name]) == 2 and phase == "Running"

        await world.until(lambda: all(map(runs_again, others)), "the others run again")
        assert world.state("job") == "Restarting"
        await world.client.delete(JOBS, "job", world.namespace, {"propagationPolicy": "Foreground"})
        await world.until(lambda: list(uids(world)) == ["job-master-0"], "they are gone")
        await submit(world, a_job("other", 1))
        await runs(world, "other")  # so the operator has looked at all that was before
        assert [len(world.created[name]) for name in others] == [2, 2]
        world.dead.clear()
        await world.until(lambda: not world.job("job") and not world.pod("job-master-0"), "all is gone")

    tell(real, story)


def test_a_second_job_of_the_name_waits_for_the_pods_of_the_first(real: Access) -> None:
    async def story(world: World) -> None:
        await submit(world, a_job("job"))
        await runs(world)
        first = uids(world)
        slow = str(world.pod("job-worker-0")["spec"]["nodeName"])
        world.dead.add(slow)  # its kubelet takes its time
        await world.client.delete(JOBS, "job", world.namespace, {"propagationPolicy": "Background"})
        await world.until(lambda: not world.job("job"), "the first is gone")
        await submit(world, a_job("job"))
        await world.until(lambda: "job-master-0" in world.created and len(world.created["job-master-0"]) == 2, "anew")
        assert uid_of(world.pod("job-worker-0")) == first["job-worker-0"], "the old one is still ending"
        world.dead.clear()
        await runs(world)
        assert not set(uids(world).values()) & set(first.values())
        assert world.restarts("job") == 0

    tell(real, story)


def test_a_namespace_that_is_deleted_takes_its_jobs_along(real: Access) -> None:
    async def story(world: World) -> None:
        await submit(world, a_job("job", labels={"fault-retry-times": "3"}))
        await runs(world)
        await world.client.delete(NAMESPACES, world.namespace)
        await world.until(lambda: not world.job("job") and not world.own_pods(), "all is gone")

        async def gone() -> bool:
            namespaces = (await world.client.list(NAMESPACES))["items"]
            return world.namespace not in [name_of(n) for n in namespaces]

        await until_async(gone, "the namespace is gone, too", 20.0)

    tell(real, story)


def test_nothing_is_done_for_the_jobs_of_a_namespace_that_is_being_deleted(real: Access) -> None:
    async def story(world: World) -> None:
        await submit(world, a_job("job"))
        await runs(world)
        eyes = Eyes(world.client, lambda key: None, namespace=world.namespace)
        watching = asyncio.ensure_future(eyes.run())
        try:
            await eyes.synced()
            key = f"{world.namespace}/job"
            there = eyes.namespaces.get(world.namespace)
            assert there is not None
            before = eyes.look(key)
            newer = str(int(there["metadata"]["resourceVersion"]) + 1)
            ending = {"resourceVersion": newer, "deletionTimestamp": "2026-01-01T00:00:00Z"}
            eyes.namespaces.learn({**there, "metadata": {**there["metadata"], **ending}})
            after = eyes.look(key)
        finally:
            await end(watching)
        assert before is not None
        assert after is not None
        assert before.seen.ends == ""
        assert decide(after.wanted, after.seen, 0.0).why == ("its namespace is being deleted",)

    tell(real, story)
