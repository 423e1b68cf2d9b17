"""Promise 7: reconcile converges from any state, with any write failing or repeated.

A whole life of a job, with a failed pod, a deleted pod, a lost node, a suspension, success and the end of its time. It
is lived by an operator that is killed after each of its writes, reads what is old, gets no replies, or is refused; in
the end everything must be as in the life in which nothing went wrong, and nothing foreign may have changed.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from world import Anything, EachWriteFirst, Fate, KilledAfterEachWrite, Stale, World, a_job, operated

from onward.kube.access import Access
from onward.kube.client import Client
from onward.kube.objects import CONFIGMAPS, EVENTS, PODS, SECRETS, SERVICES, Obj, Resource, name_of
from onward.operator.eyes import JOBS

LABELS = {"fault-scheduling": "force", "fault-retry-times": "5"}
FOREIGN: list[tuple[Resource, Obj]] = [
    (PODS, {"metadata": {"name": "life-worker-7"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}),
    (SECRETS, {"metadata": {"name": "life-own"}, "stringData": {"a": "b"}}),
    (SERVICES, {"metadata": {"name": "life-worker-0"}, "spec": {"ports": [{"port": 80}]}}),
    (CONFIGMAPS, {"metadata": {"name": "life"}, "data": {"a": "b"}}),
]


async def live(real: Access, namespace: str, fate: Fate) -> dict[str, Any]:
    """A life; and all that is to be the same in each."""
    async with Client(real) as client:
        world = World(client, namespace)
        await world.build()
        marks = {"job-name": "life", "training.kubeflow.org/operator-name": "ascendjob-controller"}
        foreign = []
        for resource, body in FOREIGN:
            body = {**body, "metadata": {**body["metadata"], "labels": marks}}
            foreign.append((resource, await client.create(resource, body, namespace)))
        async with operated(real, world, fate) as lives:
            await client.create(JOBS, a_job("life", labels=LABELS, ttlSecondsAfterFinished=1), namespace)
            await world.until(lambda: world.state("life") == "Running", "it runs")
            world.end("life-worker-1", 1)
            await world.until(lambda: _runs(world, 1), "it runs again, after a pod has failed")
            await client.delete(PODS, "life-worker-0", namespace)
            await world.until(lambda: _runs(world, 2), "it runs again, after a pod was deleted")
            bad = world.pod("life-master-0")["spec"]["nodeName"]
            await world.lose(bad)
            await world.until(lambda: _runs(world, 3), "it runs again, without the lost node")
            assert bad not in [p["spec"]["nodeName"] for p in world.own_pods()]
            await world.edit("life", {"spec": {"runPolicy": {"suspend": True}}})
            await world.until(lambda: world.condition("life").get("reason") == "JobSuspended", "it is suspended")
            await world.until(lambda: not world.own_pods(), "no pods while it is suspended")
            await world.edit("life", {"spec": {"runPolicy": {"suspend": False}}})
            await world.until(lambda: world.state("life") == "Running", "it runs again, resumed")
            for pod in world.own_pods():
                world.end(name_of(pod), 0)
            await world.until(lambda: world.state("life") == "Succeeded", "it succeeds")
            last = world.job("life")["status"]
            await world.until(lambda: not world.job("life"), "it is deleted when its time is over")
            await world.until(lambda: not world.own_pods(), "and its pods with it")
        for resource, before in foreign:
            after = await client.get(resource, name_of(before), namespace)
            assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"], name_of(before)
        events = (await client.list(EVENTS, namespace, fieldSelector="involvedObject.name=life"))["items"]
        told = [(e["type"], e["reason"], e["message"]) for e in events]
        assert len(told) == len(set(told)), "an event is told once"
        assert all(s["restarts"] <= t["restarts"] for s, t in zip(world.statuses, world.statuses[1:], strict=False))
        del world.created["life-worker-7"]
        return {
            "created": world.created,
            "record": {k: v for k, v in last["record"].items() if k != "avoid"},
            "states": [(c["type"], c["status"], c["reason"]) for c in last["conditions"]],
            "told": set(told),
            "lives": len(lives),
        }


def _runs(world: World, restarts: int) -> bool:
    return world.state("life") == "Running" and world.restarts("life") == restarts


FATES: dict[str, Fate] = {
    "killed before it hears the reply": KilledAfterEachWrite(heard=False),
    "killed after it heard the reply": KilledAfterEachWrite(heard=True),
    "replies are lost": EachWriteFirst("lost"),
    "connections break": EachWriteFirst("drop"),
    "409": EachWriteFirst("409"),
    "429": EachWriteFirst("429"),
    "500": EachWriteFirst("500"),
    "stale reads": Stale(1),
    "anything": Anything(2),
}


def test_promise_7_reconcile_converges_whatever_goes_wrong(real: Access) -> None:
    async def go() -> None:
        tag = uuid.uuid4().hex[:6]
        calm = await live(real, f"calm-{tag}", Fate())
        assert calm["created"] == {
            "life-master-0": ["0", "1", "2", "3", "4"],
            "life-worker-0": ["0", "1", "2", "3", "4"],
            "life-worker-1": ["0", "1", "2", "3", "4"],
        }
        names = list(FATES)
        runs = [live(real, f"life-{i}-{tag}", FATES[name]) for i, name in enumerate(names)]
        found = await asyncio.gather(*runs, return_exceptions=True)
        for name, one in zip(names, found, strict=True):
            if isinstance(one, BaseException):
                raise AssertionError(f"{name}: {one!r}") from one
            assert one["created"] == calm["created"], name
            assert one["record"] == calm["record"], name
            assert one["states"] == calm["states"], name
            assert one["told"] <= calm["told"], (name, one["told"] - calm["told"])
            assert FATES[name].fired > 0, name
        assert found[0]["lives"] > 40, "it was killed after each of its writes"

    asyncio.run(asyncio.wait_for(go(), 250))
