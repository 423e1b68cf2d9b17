"""A cluster that is only objects: nodes and pods without processes, moved on by a story. And an API that kills.

The operator under test is the real one, against the real API server; only kubelets and the scheduler are played.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
from aiohttp import web
from faultyapi import EXPIRED, FaultyApi
from waiting import until_async

from onward.kube.access import Access
from onward.kube.client import ApiError, Client, Unreachable
from onward.kube.informer import Informer
from onward.kube.objects import EVENTS, NAMESPACES, NODES, PODGROUPS, PODS, Obj, name_of, uid_of
from onward.operator.eyes import JOBS
from onward.operator.loop import Operator

WRITES = ("POST", "PUT", "PATCH", "DELETE")
POD_GROUPS: Obj = {
    "metadata": {"name": "podgroups.scheduling.volcano.sh"},
    "spec": {
        "group": "scheduling.volcano.sh",
        "scope": "Namespaced",
        "names": {"kind": "PodGroup", "plural": "podgroups", "listKind": "PodGroupList"},
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def a_job(
    name: str,
    workers: int = 2,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **run: Any,
) -> Obj:
    container = {"name": "ascend", "image": "x", "command": ["sleep", "600"]}
    template = {"spec": {"containers": [container]}}
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {
            "name": name,
            "labels": {"framework": "pytorch", **(labels or {})},
            "annotations": annotations or {},
        },
        "spec": {
            "runPolicy": run,
            "replicaSpecs": {"Master": {"template": template}, "Worker": {"replicas": workers, "template": template}},
        },
    }


class KillingApi(FaultyApi):
    """Between an operator and the server. `fate` says what becomes of each write: see `Fate`."""

    def __init__(self, access: Access, fate: Fate) -> None:
        super().__init__(access)
        self.fate = fate
        self.kill = fate.kill
        self.effective = 0  # writes that changed something

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.fate.asked.append((request.method, request.path, "watch" in request.query))
        if self.fate.unserved(request.path):
            return web.json_response({"kind": "Status", "code": 404, "message": "no such kind"}, status=404)
        if request.method not in WRITES:
            if request.query.get("watch") == "true":
                return await self._watch(request)
            return await super()._handle(request)
        if self.kill.is_set():
            return self._abort(request)
        verdict = self.fate.before(request)
        if verdict == "drop":
            return self._abort(request)
        if verdict.isdigit():
            return self._made_up(int(verdict))
        async with self._session.request(**await self._same(request)) as answer:
            text = await answer.read()
            if answer.status < 400:
                self.effective += 1
                after = self.fate.after(request)
                if after in ("kill", "kill-heard"):
                    self.kill.set()
                if after in ("kill", "lost"):
                    return self._abort(request)
            return web.Response(body=text, status=answer.status, content_type="application/json")

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        if self.fate.expires():
            return web.Response(text=EXPIRED)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        with contextlib.suppress(aiohttp.ClientError, ConnectionError, asyncio.TimeoutError):
            async with self._session.request(**await self._same(request)) as answer:
                await response.prepare(request)
                ends = time.monotonic() + self.fate.watch_s()
                async for chunk in answer.content.iter_any():
                    await asyncio.sleep(self.fate.delay_s())  # a watch that is behind, on purpose
                    await response.write(chunk)
                    if time.monotonic() > ends:
                        break
        return response


class Fate:
    """Nothing ever goes wrong. Others override what they want to go wrong, and count it in `fired`."""

    def __init__(self) -> None:
        self.fired = 0
        self.asked: list[tuple[str, str, bool]] = []  # method, path, whether it is a watch
        self.kill = asyncio.Event()  # set: the operator dies, and another begins

    def before(self, request: web.Request) -> str:
        """drop, or a status: the server never hears of it."""
        return ""

    def after(self, request: web.Request) -> str:
        """kill: the operator dies before it hears the reply; kill-heard: after; lost: the reply is lost."""
        return ""

    def unserved(self, path: str) -> bool:
        """There is no such kind (any more)."""
        return False

    def expires(self) -> bool:
        return False

    def watch_s(self) -> float:
        return 3600.0

    def delay_s(self) -> float:
        return 0.0


class KilledAfterEachWrite(Fate):
    def __init__(self, heard: bool) -> None:
        super().__init__()
        self._word = "kill-heard" if heard else "kill"

    def after(self, request: web.Request) -> str:
        self.fired += 1
        return self._word


class EachWriteFirst(Fate):
    """Every write meets `kind` once, then goes through."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind
        self._turns: dict[tuple[str, str], int] = {}

    def _first(self, request: web.Request) -> bool:
        """Counted for each way by itself: two writes that always come together must not share one turn for ever."""
        way = (request.method, request.path)
        turn = self._turns[way] = self._turns.get(way, 0) + 1
        if turn % 2:
            self.fired += 1
        return bool(turn % 2)

    def before(self, request: web.Request) -> str:
        return self._kind if self._kind != "lost" and self._first(request) else ""

    def after(self, request: web.Request) -> str:
        return "lost" if self._kind == "lost" and self._first(request) else ""


class Stale(Fate):
    """Watches are behind, break, and are too old to be taken up: then everything is listed, and states are skipped."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)

    def expires(self) -> bool:
        gone = self._random.random() < 0.3
        self.fired += gone
        return gone

    def watch_s(self) -> float:
        return self._random.uniform(0.1, 1.0)

    def delay_s(self) -> float:
        return self._random.choice([0.0, 0.05, 0.3])


class Anything(Stale):
    """All of it, at random."""

    def before(self, request: web.Request) -> str:
        kind = self._random.choice(["", "", "", "", "drop", "500", "409", "429"])
        self.fired += bool(kind)
        return kind

    def after(self, request: web.Request) -> str:
        return self._random.choice(["", "", "", "", "lost", "kill", "kill-heard"])


class World:
    """Nodes, a scheduler and kubelets for one namespace. `ends` says how a pod ends; `dead` nodes do nothing."""

    def __init__(self, client: Client, namespace: str, nodes: int = 4) -> None:
        self.client, self.namespace = client, namespace
        self.nodes = [f"{namespace}-n{i}" for i in range(nodes)]
        self.dead: set[str] = set()
        self.gang_phase = "Inqueue"
        self.address = ""  # of pods, without the last number; empty: one for all
        self.ends: dict[str, int] = {}  # uid of a pod -> exit code
        self.created: dict[str, list[str]] = {}  # name -> waves, in the order of creation
        self.statuses: list[Obj] = []
        self.pods = Informer(client, PODS, namespace, on_change=self._on_pod)
        self.jobs = Informer(client, JOBS, namespace, on_change=self._on_job)
        self.groups = Informer(client, PODGROUPS, namespace, on_change=self._on_any)
        self._changed = asyncio.Event()
        self._uids: set[str] = set()
        self._addresses = 0

    def _on_any(self, old: Obj | None, new: Obj | None) -> None:
        self._changed.set()

    def _on_pod(self, old: Obj | None, new: Obj | None) -> None:
        if new is not None and uid_of(new) not in self._uids:
            self._uids.add(uid_of(new))
            wave = (new["metadata"].get("labels") or {}).get("version", "")
            self.created.setdefault(name_of(new), []).append(wave)
        self._changed.set()

    def _on_job(self, old: Obj | None, new: Obj | None) -> None:
        if new is not None and new.get("status"):
            self.statuses.append(new["status"])
        self._changed.set()

    async def build(self) -> None:
        await self.client.create(NAMESPACES, {"metadata": {"name": self.namespace}})
        for node in self.nodes:
            await self.client.create(NODES, {"metadata": {"name": node, "labels": {"kubernetes.io/hostname": node}}})
            await self.ready(node, True)

    async def ready(self, node: str, ready: bool) -> None:
        status, since = "True" if ready else "Unknown", "2026-01-01T00:00:00Z"
        condition = {"type": "Ready", "status": status, "lastTransitionTime": since}
        await self.client.patch(NODES, node, {"status": {"conditions": [condition]}}, sub="status")

    async def run(self) -> None:
        tasks = [asyncio.ensure_future(i.run()) for i in (self.pods, self.jobs, self.groups)]
        try:
            while True:
                self._changed.clear()
                for group in self.groups:
                    if ((group.get("status") or {}).get("phase") or "") != self.gang_phase:
                        await self._quietly(self._admit(group))
                for pod in self.pods:
                    await self._quietly(self._move(pod))
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 0.2)
        finally:
            await end(*tasks)

    async def _quietly(self, work: Any) -> None:
        try:
            await work
        except (ApiError, Unreachable) as e:
            if isinstance(e, ApiError) and e.code not in (404, 409):
                raise

    async def _admit(self, group: Obj) -> None:
        patch = {"status": {"phase": self.gang_phase}}
        self.groups.learn(await self.client.patch(PODGROUPS, name_of(group), patch, self.namespace, sub="status"))

    async def _move(self, pod: Obj) -> None:
        name, node, metadata = name_of(pod), pod["spec"].get("nodeName"), pod["metadata"]
        owners = metadata.get("ownerReferences")
        phase = (pod.get("status") or {}).get("phase")
        if node in self.dead or not owners:
            return
        if metadata.get("deletionTimestamp"):
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid_of(pod)}}
            await self.client.delete(PODS, name, self.namespace, options)
            self.pods.unlearn(pod)
        elif not node:
            await self._bind(pod)
        elif phase == "Pending":
            await self._set(pod, {"phase": "Running", "podIP": self._address()})
        elif phase == "Running" and uid_of(pod) in self.ends:
            code = self.ends[uid_of(pod)]
            state = {"name": "ascend", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
            state["state"] = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
            await self._set(pod, {"phase": "Failed" if code else "Succeeded", "containerStatuses": [state]})

    def _address(self) -> str:
        self._addresses += 1
        return f"{self.address}.{self._addresses}" if self.address else "127.0.0.9"

    async def _bind(self, pod: Obj) -> None:
        avoid = str((pod["metadata"].get("annotations") or {}).get("onward.dev/avoid-nodes", "")).split(",")
        free = [n for n in self.nodes if n not in self.dead and n not in avoid]
        used = [p["spec"].get("nodeName") for p in self.pods]
        node = min(free, key=lambda n: (used.count(n), n))
        target = {"target": {"kind": "Node", "name": node}, "metadata": {"name": name_of(pod), "uid": uid_of(pod)}}
        await self.client.request("POST", PODS.path(self.namespace, name_of(pod), "binding"), target)
        self.pods.learn(await self.client.get(PODS, name_of(pod), self.namespace))

    async def _set(self, pod: Obj, status: Obj) -> None:
        patch = {"metadata": {"uid": uid_of(pod)}, "status": status}
        self.pods.learn(await self.client.patch(PODS, name_of(pod), patch, self.namespace, sub="status"))

    # ------------------------------------------------------------------------------------------ what stories say

    def job(self, name: str) -> Obj:
        return self.jobs.get(f"{self.namespace}/{name}") or {}

    def pod(self, name: str) -> Obj:
        return self.pods.get(f"{self.namespace}/{name}") or {}

    def own_pods(self) -> list[Obj]:
        return [p for p in self.pods if p["metadata"].get("ownerReferences")]

    def state(self, name: str) -> str:
        conditions = (self.job(name).get("status") or {}).get("conditions") or [{}]
        return str(conditions[-1].get("type", ""))

    def condition(self, name: str) -> Obj:
        conditions = (self.job(name).get("status") or {}).get("conditions") or [{}]
        last: Obj = conditions[-1]
        return last

    def restarts(self, name: str) -> int:
        return int((self.job(name).get("status") or {}).get("restarts") or 0)

    def end(self, name: str, code: int) -> None:
        self.ends[uid_of(self.pod(name))] = code
        self._changed.set()

    async def lose(self, node: str) -> None:
        """It falls silent, and what is on it does too."""
        self.dead.add(node)
        await self.ready(node, False)

    async def until(self, good: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
        def told() -> str:
            pods = [(name_of(p), p["metadata"]["labels"].get("version"), p["status"]) for p in self.own_pods()]
            return f"{what}; {self.statuses[-1:]}; {pods}"

        await until_async(good, told, timeout_s)

    async def told(self, name: str, good: Callable[[str], bool], what: str) -> None:
        """Wait for an event, `Reason: message`, about a job. They are written beside everything else."""
        found: list[str] = []

        async def look() -> bool:
            listed = await self.client.list(EVENTS, self.namespace, fieldSelector=f"involvedObject.name={name}")
            found[:] = [f"{e['reason']}: {e['message']}" for e in listed["items"]]
            return any(map(good, found))

        await until_async(look, lambda: f"{what}: {found}", 30.0)

    async def edit(self, name: str, patch: Obj) -> None:
        await self.client.patch(JOBS, name, patch, self.namespace)


@contextlib.asynccontextmanager
async def operated(
    real: Access, world: World, fate: Fate, gang: bool | None = True, **given: Any
) -> AsyncIterator[list[int]]:
    """An operator that is started again whenever it is killed. Yields a list with one entry for each life."""
    lives: list[int] = []

    async def live() -> None:
        async with KillingApi(real, fate) as api, Client(api.access) as client:
            while True:
                api.kill.clear()
                lives.append(api.effective)
                task = asyncio.ensure_future(Operator(client, gang=gang, namespace=world.namespace, **given).run())
                killed = asyncio.ensure_future(api.kill.wait())
                try:
                    await asyncio.wait({task, killed}, return_when=asyncio.FIRST_COMPLETED)
                    if task.done():
                        task.result()
                        raise AssertionError("the operator ended by itself")
                finally:
                    await end(task, killed)

    life, cluster = asyncio.ensure_future(live()), asyncio.ensure_future(world.run())
    try:
        yield lives
    finally:  # who has died before says why, instead of what was waited for in vain
        died = [e for task in (life, cluster) if task.done() and (e := task.exception()) is not None]
        await end(life, cluster)
        if died:
            raise died[0]


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Once is not enough: Python 3.11 loses a cancellation that meets the end of a `wait_for`."""
    while not all(task.done() for task in tasks):
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=0.1)
