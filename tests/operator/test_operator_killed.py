"""Promise 7: reconcile converges from any state, with any write failing or repeated.

A whole life of a job, with a failed pod, a deleted pod, a lost node, a suspension, success and the end of its time. It
is lived by an operator that is killed after each of its writes, reads what is old, gets no replies, or is refused; in
the end everything must be as in the life in which nothing went wrong, and nothing foreign may have changed.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from world import Anything, EachWriteFirst, Fate, KilledAfterEachWrite, Stale, World, a_job, operated

from onward.kube.access import Access
from onward.kube.client import Client
from onward.kube.objects import CONFIGMAPS, EVENTS, PODS, SECRETS, SERVICES, Obj, Resource, name_of
from onward.operator.eyes import JOBS

LABELS = {"fault-scheduling": "force", "fault-retry-times": "5"}
TROUBLE = ("PodCreateFailed", "SyncServiceFailed", "SyncPodGroupFailed", "PodGroupNotInitialized")
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
            "states": [(c["type"], c["status"], _settled(c["reason"])) for c in last["conditions"]],
            "told": {(kind, reason) for kind, reason, _ in told},
            "lives": len(lives),
        }


def _settled(reason: str) -> str:
    """What kept a job from going on stays written beside its first state; in a calm life nothing did."""
    return "JobCreated" if reason in TROUBLE else reason


def _runs(world: World, restarts: int) -> bool:
    return world.state("life") == "Running" and world.restarts("life") == restarts


FATES: dict[str, Callable[[], Fate]] = {
    "killed before it hears the reply": lambda: KilledAfterEachWrite(heard=False),
    "anything": lambda: Anything(2),
}
MORE: dict[str, Callable[[], Fate]] = {
    "replies are lost": lambda: EachWriteFirst("lost"),
    "killed after it heard the reply": lambda: KilledAfterEachWrite(heard=True),
    "connections break": lambda: EachWriteFirst("drop"),
    "409": lambda: EachWriteFirst("409"),
    "429": lambda: EachWriteFirst("429"),
    "500": lambda: EachWriteFirst("500"),
    "stale reads": lambda: Stale(1),
    **{f"anything {seed}": lambda seed=seed: Anything(seed) for seed in range(3, 9)},  # type: ignore[misc]
}


def test_promise_7_reconcile_converges_whatever_goes_wrong(real: Access) -> None:
    found = asyncio.run(asyncio.wait_for(compare(real, FATES), 250))
    assert found["killed before it hears the reply"]["lives"] > 40, "it was killed after each of its writes"


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_promise_7_in_all_other_ways(real: Access) -> None:
    for name, fate in MORE.items():
        asyncio.run(asyncio.wait_for(compare(real, {name: fate}), 300))


def rights() -> set[tuple[str, str]]:
    """(verb, resource) as the operator's role lists them."""
    file = Path(__file__).resolve().parents[2] / "deploy/operator.yaml"
    roles = [doc for doc in yaml.safe_load_all(file.read_text()) if doc["kind"] in ("ClusterRole", "Role")]
    rules = [rule for role in roles for rule in role["rules"]]
    return {(verb, name) for rule in rules for verb in rule["verbs"] for name in rule["resources"]}


def verb_and_resource(method: str, path: str, watch: bool) -> tuple[str, str]:
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if parts[0] == "namespaces" and len(parts) > 2:
        parts = parts[2:]
    verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    reading = "watch" if watch else "get" if len(parts) > 1 else "list"
    return verbs.get(method, reading), "/".join([parts[0], *parts[2:]])


async def compare(real: Access, fates: dict[str, Callable[[], Fate]]) -> dict[str, Any]:
    """These lives, all at once, against one in which nothing goes wrong."""
    tag = uuid.uuid4().hex[:6]
    nothing_wrong = Fate()
    calm = await live(real, f"calm-{tag}", nothing_wrong)
    allowed = rights()
    for method, path, watch in nothing_wrong.asked:
        assert verb_and_resource(method, path, watch) in allowed, f"{method} {path} is not in deploy/operator.yaml"
    waves = ["0", "1", "2", "3", "4"]
    assert calm["created"] == dict.fromkeys(("life-master-0", "life-worker-0", "life-worker-1"), waves)
    asked = {name: make() for name, make in fates.items()}
    runs = [live(real, f"life-{i}-{tag}", fate) for i, fate in enumerate(asked.values())]
    found = dict(zip(asked, await asyncio.gather(*runs, return_exceptions=True), strict=True))
    for name, one in found.items():
        if isinstance(one, BaseException):
            raise AssertionError(f"{name}: {one!r}") from one
        for what in ("created", "record", "states"):
            assert one[what] == calm[what], name
        told = {said for said in one["told"] if said[1] not in TROUBLE}
        assert told <= calm["told"], (name, told - calm["told"])  # who was seen first, on which node, may differ
        assert asked[name].fired > 0, name
    return found
