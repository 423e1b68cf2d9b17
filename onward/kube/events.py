"""Events: what people read in `kubectl describe`. The same thing said again counts up one event.

What an event is called follows from what it says about whom: a copy of this process that was started anew, or a reply
that was lost, does not make a second one.
Recording never waits and never fails: an event that cannot be written is dropped and counted, work goes on.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict

from onward.kube.client import ApiError, Client, Unreachable, backoff_s
from onward.kube.objects import EVENTS, Obj, Resource, reference, stamp
from onward.log import get_logger

log = get_logger("kube.events")

REMEMBERED = 4096
WAITING = 1000
ATTEMPTS = 8
BURST, EVERY_S = 60, 10.0  # of different texts about one object: the server is not for diaries


class EventRecorder:
    """`run()` in a task writes; `record` can be called from anywhere in the loop."""

    def __init__(self, client: Client, component: str, host: str = "") -> None:
        self._client, self._component, self._host = client, component, host
        self._queue: asyncio.Queue[tuple[str, ...]] = asyncio.Queue(WAITING)
        self._bodies: dict[tuple[str, ...], Obj] = {}
        self._known: OrderedDict[tuple[str, ...], tuple[str, str, int]] = OrderedDict()  # -> namespace, name, count
        self._tokens: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self.dropped = 0

    def record(self, obj: Obj, resource: Resource, kind: str, reason: str, message: str) -> None:
        """`kind` is Normal or Warning."""
        ref = reference(obj, resource)
        message = message[:1024]
        key = (ref["kind"], ref["namespace"], ref["name"], ref["uid"], kind, reason, message)
        if key not in self._known and not self._allowed(f"{ref['kind']}/{ref['namespace']}/{ref['name']}"):
            self.dropped += 1
            return
        waiting = key in self._bodies
        body = self._bodies.setdefault(key, {"ref": ref, "first": time.time(), "times": 0})
        body["times"] += 1
        body["last"] = time.time()
        if not waiting:
            try:
                self._queue.put_nowait(key)
            except asyncio.QueueFull:
                del self._bodies[key]
                self.dropped += 1

    def _allowed(self, about: str) -> bool:
        tokens, at = self._tokens.get(about, (float(BURST), time.monotonic()))
        now = time.monotonic()
        tokens = min(BURST, tokens + (now - at) / EVERY_S)
        self._tokens[about] = (tokens - 1 if tokens >= 1 else tokens, now)
        self._tokens.move_to_end(about)
        while len(self._tokens) > REMEMBERED:
            self._tokens.popitem(last=False)
        return tokens >= 1

    async def run(self) -> None:
        while True:
            key = await self._queue.get()
            body = self._bodies.pop(key)
            for attempt in range(ATTEMPTS):
                try:
                    await self._write(key, body)
                    break
                except Unreachable as e:
                    log.info("event not written: %s", e)
                    await asyncio.sleep(backoff_s(attempt))
                except ApiError as e:
                    if e.code < 500:  # its namespace is going away, or it is refused: nobody would ever read it
                        self.dropped += 1
                        break
                    await asyncio.sleep(backoff_s(attempt))
            else:
                self.dropped += 1

    async def flush(self, timeout_s: float = 5.0) -> None:
        """Wait until what was recorded is written, but not for ever."""
        deadline = time.monotonic() + timeout_s
        while self._bodies and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    async def _write(self, key: tuple[str, ...], body: Obj) -> None:
        if key in self._known:
            namespace, name, count = self._known[key]
            count += body["times"]
            try:
                change = {"count": count, "lastTimestamp": stamp(body["last"])}
                await self._client.patch(EVENTS, name, change, namespace)
            except ApiError as e:
                if e.code != 404:
                    raise
                del self._known[key]  # its time is over, say it anew
            else:
                self._remember(key, namespace, name, count)
                return
        ref, kind, reason, message = body["ref"], *key[4:]
        namespace = ref["namespace"] or "default"
        said = hashlib.sha256("\0".join((self._component, *key)).encode()).hexdigest()[:16]
        name = f"{ref['name']}.{said}"
        try:
            await self._client.create(EVENTS, self._event(name, namespace, body, kind, reason, message), namespace)
        except ApiError as e:
            if e.code != 409:
                raise
            old = await self._client.get(EVENTS, name, namespace)
            self._remember(key, namespace, name, int(old.get("count") or 1))
            if body["times"] == 1:  # said by the one before us, who may have died before it could write that down
                return
            body["times"] -= 1
            return await self._write(key, body)
        self._remember(key, namespace, name, body["times"])

    def _event(self, name: str, namespace: str, body: Obj, kind: str, reason: str, message: str) -> Obj:
        source = {"component": self._component, **({"host": self._host} if self._host else {})}
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {k: v for k, v in body["ref"].items() if v},
            "type": kind,
            "reason": reason,
            "message": message,
            "source": source,
            "firstTimestamp": stamp(body["first"]),
            "lastTimestamp": stamp(body["last"]),
            "count": body["times"],
            "reportingComponent": self._component,
            "reportingInstance": self._host,
        }

    def _remember(self, key: tuple[str, ...], namespace: str, name: str, count: int) -> None:
        self._known[key] = (namespace, name, count)
        self._known.move_to_end(key)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
