"""The loop: look at all that waits, place what fits, say why the rest does not.

A pass is made when something changed, and changes that come together are one pass. What was decided counts at once
(`assumed`), long before the watch shows it, so two passes never give away the same place twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

from onward.core.placement import Room, place
from onward.kube.client import ApiError, Client, Unreachable
from onward.kube.events import EventRecorder
from onward.kube.informer import Informer
from onward.kube.objects import NODES, PODS, Obj, key_of, name_of, namespace_of, stamp, uid_of
from onward.log import get_logger
from onward.scheduler import views
from onward.scheduler.gangs import Gang, waiting_gangs

log = get_logger("scheduler")

TOGETHER_S = 0.02  # changes so close together are looked at once
AGAIN_S = 30.0  # a pass is made at least so often while something waits
ASSUMED_S = 30.0
BINDERS = 16


class Scheduler:
    """Serves the pods whose `schedulerName` is one of `names`."""

    def __init__(self, client: Client, names: Collection[str] = ("default-scheduler",)) -> None:
        self._client, self._names = client, frozenset(names)
        self._changed = asyncio.Event()
        self._pods = Informer(client, PODS, on_change=self._on_change)
        self._nodes = Informer(client, NODES, on_change=self._on_change)
        self._events = EventRecorder(client, "default-scheduler")
        self._assumed: dict[str, tuple[str, float]] = {}  # uid -> node, until
        self._said: dict[str, str] = {}
        self.passes = 0

    def _on_change(self, old: Obj | None, new: Obj | None) -> None:
        if new is not None and new.get("kind") == "Pod" and new["spec"].get("nodeName"):
            self._assumed.pop(uid_of(new), None)
        if new is None and old is not None:
            self._assumed.pop(uid_of(old), None)
            self._said.pop(uid_of(old), None)
        self._changed.set()

    async def run(self) -> None:
        tasks = [asyncio.ensure_future(t.run()) for t in (self._pods, self._nodes, self._events)]
        try:
            await self._nodes.synced()
            await self._pods.synced()
            tasks.append(asyncio.ensure_future(self._passes()))
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _passes(self) -> None:
        while True:
            try:
                await asyncio.wait_for(self._changed.wait(), AGAIN_S)
            except asyncio.TimeoutError:
                pass
            await asyncio.sleep(TOGETHER_S)
            self._changed.clear()
            try:
                await self.one_pass()
            except (ApiError, Unreachable) as e:
                log.info("scheduling: %s; again soon", e)
                self._changed.set()

    async def one_pass(self) -> None:
        self.passes += 1
        pending = [pod for pod in self._pods if self._waits(pod)]
        if not pending:
            return
        rooms = self._rooms()
        bindings: list[tuple[Obj, str]] = []
        for gang in waiting_gangs(pending):
            bindings += await self._try(gang, rooms)
        limit = asyncio.Semaphore(BINDERS)
        await asyncio.gather(*(self._bind(pod, node, limit) for pod, node in bindings))

    def _waits(self, pod: Obj) -> bool:
        spec, metadata = pod["spec"], pod["metadata"]
        return (
            not spec.get("nodeName")
            and not metadata.get("deletionTimestamp")
            and not views.finished(pod)
            and not spec.get("schedulingGates")
            and (spec.get("schedulerName") or "default-scheduler") in self._names
            and uid_of(pod) not in self._assumed
        )

    def _rooms(self) -> dict[str, Room]:
        now = time.monotonic()
        self._assumed = {uid: (node, until) for uid, (node, until) in self._assumed.items() if until > now}
        rooms = {name_of(node): views.room(node) for node in self._nodes}
        for pod in self._pods:
            node = pod["spec"].get("nodeName") or self._assumed.get(uid_of(pod), ("", 0.0))[0]
            if node and not views.finished(pod):
                views.put(rooms, pod, node)
        return rooms

    async def _try(self, gang: Gang, rooms: dict[str, Room]) -> list[tuple[Obj, str]]:
        wishes = {key_of(pod): views.wish(pod) for pod in gang.pods}
        answer = place(list(wishes.values()), rooms.values())
        if answer.why:
            for pod in gang.pods:
                await self._refuse(pod, answer.why[key_of(pod)])
            return []
        found = []
        for pod in gang.pods:
            node = answer.nodes[key_of(pod)]
            rooms[node].take(wishes[key_of(pod)])
            self._assumed[uid_of(pod)] = (node, time.monotonic() + ASSUMED_S)
            found.append((pod, node))
        return found

    async def _bind(self, pod: Obj, node: str, limit: asyncio.Semaphore) -> None:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name_of(pod), "namespace": namespace_of(pod), "uid": uid_of(pod)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        async with limit:
            try:
                path = PODS.path(namespace_of(pod), name_of(pod), "binding")
                await self._client.request("POST", path, binding)
            except (ApiError, Unreachable) as e:
                self._assumed.pop(uid_of(pod), None)
                if not (isinstance(e, ApiError) and e.code in (404, 409)):  # else: gone, or bound by another
                    log.warning("binding %s to %s: %s", key_of(pod), node, e)
                self._changed.set()
                return
        self._said.pop(uid_of(pod), None)
        text = f"Successfully assigned {key_of(pod)} to {node}"
        self._events.record(pod, PODS, "Normal", "Scheduled", text)

    async def _refuse(self, pod: Obj, why: str) -> None:
        """Said when it is new, not at each pass."""
        if self._said.get(uid_of(pod)) == why:
            return
        self._said[uid_of(pod)] = why
        self._events.record(pod, PODS, "Warning", "FailedScheduling", why)
        old = (pod.get("status") or {}).get("conditions") or []
        entry = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": why,
            "lastTransitionTime": stamp(time.time()),
        }
        conditions = [c for c in old if c["type"] != "PodScheduled"] + [entry]
        patch = {"metadata": {"uid": uid_of(pod)}, "status": {"conditions": conditions}}
        try:
            await self._client.patch(PODS, name_of(pod), patch, namespace_of(pod), sub="status")
        except ApiError as e:
            if e.code not in (404, 409):
                raise
