"""What people read: events and conditions that say why a pod waits. Written beside the work, never in its way.

The same thing is said once. While the reasons change from moment to moment, the newest is said every few seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping

from onward.kube.client import STRATEGIC, ApiError, Client, Unreachable
from onward.kube.events import EventRecorder
from onward.kube.objects import PODS, Obj, Resource, key_of, name_of, namespace_of, stamp, uid_of, version_of
from onward.log import get_logger

log = get_logger("scheduler.words")

AGAIN_S = 3.0  # between two different texts about one object
WRITERS = 4


class Words:
    """`run()` in a task writes."""

    def __init__(self, client: Client, names: Iterable[str]) -> None:
        self._client = client
        self._recorders = {name: EventRecorder(client, name) for name in names}
        self._said: dict[str, tuple[str, float]] = {}  # uid -> text, when
        self._refusals: dict[str, tuple[Obj, str]] = {}  # to be written; the newest for each pod
        self._wake = asyncio.Event()
        self.held_back = False  # something newer is known than was said

    def event(self, obj: Obj, resource: Resource, kind: str, reason: str, text: str, by: str = "") -> None:
        recorder = self._recorders.get(by) or next(iter(self._recorders.values()))
        recorder.record(obj, resource, kind, reason, text)

    def new(self, uid: str, text: str) -> bool:
        """Whether this is to be said now."""
        said, at = self._said.get(uid, ("", 0.0))
        if said == text:
            return False
        if said and time.monotonic() < at + AGAIN_S:
            self.held_back = True
            return False
        self._said[uid] = (text, time.monotonic())
        return True

    def forget(self, uid: str) -> None:
        self._said.pop(uid, None)

    def refuse(self, pod: Obj, why: str) -> None:
        if self.new(uid_of(pod), why):
            self._refusals[key_of(pod)] = (pod, why)
            self._wake.set()

    def placed(self, pod: Obj, node: str) -> None:
        self._refusals.pop(key_of(pod), None)
        self.forget(uid_of(pod))
        text = f"Successfully assigned {key_of(pod)} to {node}"
        self.event(pod, PODS, "Normal", "Scheduled", text, _scheduler(pod))

    async def run(self) -> None:
        await asyncio.gather(*(r.run() for r in self._recorders.values()), *(self._write() for _ in range(WRITERS)))

    async def _write(self) -> None:
        while True:
            while not self._refusals:
                self._wake.clear()
                await self._wake.wait()
            key = next(iter(self._refusals))
            pod, why = self._refusals.pop(key)
            try:
                patch = _condition(pod, why)
                await self._client.patch(PODS, name_of(pod), patch, namespace_of(pod), "status", STRATEGIC)
            except (ApiError, Unreachable) as e:
                if isinstance(e, ApiError) and e.code in (404, 409):  # gone, or something else by now: looked at again
                    self.forget(uid_of(pod))
                    continue
                log.info("%s: %s", key, e)
            self.event(pod, PODS, "Warning", "FailedScheduling", why, _scheduler(pod))


def _scheduler(pod: Obj) -> str:
    return str(pod["spec"].get("schedulerName") or "default-scheduler")


def _condition(pod: Obj, why: str) -> Mapping[str, object]:
    entry = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": why,
        "lastTransitionTime": stamp(time.time()),
    }
    # Of this very version: a pod that was bound meanwhile must not be told that it was not.
    seen = {"uid": uid_of(pod), "resourceVersion": version_of(pod)}
    return {"metadata": seen, "status": {"conditions": [entry]}}
