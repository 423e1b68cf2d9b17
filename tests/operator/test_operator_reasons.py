"""Jobs that cannot begin yet, and the reason in their state."""

from __future__ import annotations

import pytest
from aiohttp import web
from stories import runs, submit, tell
from world import Fate, World, a_job

from onward.kube import served
from onward.kube.access import Access
from onward.kube.objects import PODS, SERVICES


class NoGangs(Fate):
    def before(self, request: web.Request) -> str:
        self.fired += "podgroups" in request.path
        return "500" if "podgroups" in request.path else ""


async def _blocked(world: World, reason: str, text: str = "") -> None:
    await world.until(lambda: world.condition("job").get("reason") == reason, f"reason {reason}")
    condition = world.condition("job")
    assert condition["type"] == "Created"
    assert text in condition["message"]
    assert not world.own_pods()


def test_reason_sync_pod_group_failed(real: Access) -> None:
    async def story(world: World) -> None:
        await submit(world, a_job("job"))
        await _blocked(world, "SyncPodGroupFailed", "made up 500")

    tell(real, story, NoGangs())


class Volcano(Fate):
    """Comes and goes. Whoever asks for PodGroups while it is away is told that there is no such thing."""

    here = False
    refused = 0

    def unserved(self, path: str) -> bool:
        away = not self.here and "podgroups" in path
        self.refused += away
        return away

    async def comes(self, world: World) -> None:
        """And is noticed."""
        self.asked.clear()
        self.here = True
        await world.until(lambda: any("podgroups" in path and watch for _, path, watch in self.asked), "it is watched")

    async def goes(self, world: World) -> None:
        self.here, self.refused = False, 0
        await world.until(lambda: self.refused > 1, "it is missed")


def test_gangs_where_and_as_long_as_they_are_served(real: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "PROBE_S", 0.1)
    volcano = Volcano()

    def grouped(world: World, name: str) -> list[bool]:
        own = [p for p in world.own_pods() if p["metadata"]["labels"]["job-name"] == name]
        return ["scheduling.k8s.io/group-name" in p["metadata"]["annotations"] for p in own]

    async def story(world: World) -> None:
        await submit(world, a_job("early"))
        await runs(world, "early")
        assert grouped(world, "early") == [False] * 3
        await volcano.comes(world)
        await world.client.delete(PODS, "early-worker-1", world.namespace)
        await runs(world, "early", restarts=1)
        assert grouped(world, "early") == [False] * 3, "one in a gang would wait for those that are in none"
        await submit(world, a_job("late"))
        await runs(world, "late")
        assert grouped(world, "late") == [True] * 3
        await volcano.goes(world)
        await world.client.delete(PODS, "late-worker-1", world.namespace)
        await runs(world, "late", restarts=1)
        assert grouped(world, "late") == [False] * 3, "nobody would place them any more"

    tell(real, story, volcano, gang=None)


@pytest.mark.parametrize(("phase", "reason"), [("", "PodGroupNotInitialized"), ("Pending", "PodGroupPending")])
def test_reasons_of_a_gang_that_waits(real: Access, phase: str, reason: str) -> None:
    async def story(world: World) -> None:
        world.gang_phase = phase
        await submit(world, a_job("job"))
        await _blocked(world, reason)
        world.gang_phase = "Inqueue"
        await runs(world)

    tell(real, story)


def test_reason_sync_service_failed(real: Access) -> None:
    async def story(world: World) -> None:
        taken = {"metadata": {"name": "job-master-0"}, "spec": {"ports": [{"port": 1}]}}
        made = await world.client.create(SERVICES, taken, world.namespace)
        await submit(world, a_job("job"))
        await _blocked(world, "SyncServiceFailed", "belongs to nobody; it is left alone")
        left = await world.client.get(SERVICES, "job-master-0", world.namespace)
        assert left["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
        await world.client.delete(SERVICES, "job-master-0", world.namespace)
        await runs(world)

    tell(real, story)


def test_reason_pod_create_failed(real: Access) -> None:
    async def story(world: World) -> None:
        job = a_job("job", workers=0)
        container = job["spec"]["replicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
        container["volumeMounts"] = [{"name": "nowhere", "mountPath": "/x"}]
        await submit(world, job)
        await _blocked(world, "PodCreateFailed", "nowhere")

    tell(real, story)
