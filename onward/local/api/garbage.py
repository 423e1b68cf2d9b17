"""What follows a deletion: dependents of an owner; `emptying` has namespaces and CRDs.

Level-triggered: a change only says which object to look at again, the decision is taken from what is stored then. So it
does not matter whether the server was killed in between; at the start everything is looked at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from onward.local.api import clock, crds, emptying
from onward.local.api.deletion import FOREGROUND, ORPHAN, delete, drop_finalizer
from onward.local.api.request import DeleteOptions, Target, WriteOptions
from onward.local.api.rest import Api
from onward.local.api.settings import MANAGER
from onward.local.api.status import ApiError
from onward.local.api.store import Change, Item, Key, StoreError, clone

Json = dict[str, Any]
log = logging.getLogger("onward.local.api")
EVENT_TTL_S = 3600.0


class Collector:
    """Looks at one object at a time, from a queue without duplicates."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.where: dict[str, Key] = {}
        self.dependents: dict[str, set[Key]] = {}
        self.references: dict[Key, list[Json]] = {}
        self.queue: dict[Key, None] = {}
        self.wake = asyncio.Event()
        for kind, objects in api.store.objects.items():
            for (namespace, name), item in objects.items():
                self._index((kind, namespace, name), item.body)
                self.queue[kind, namespace, name] = None
        self.wake.set()
        api.store.listen("", self._changed)

    # -- bookkeeping ---------------------------------------------------------------------------------------------

    def _index(self, key: Key, body: Json) -> None:
        self.where[body["metadata"]["uid"]] = key
        owners = body["metadata"].get("ownerReferences") or []
        if owners != self.references.get(key, []):
            for each in self.references.pop(key, []):
                self.dependents.get(each["uid"], set()).discard(key)
            for each in owners:
                self.dependents.setdefault(each["uid"], set()).add(key)
            if owners:
                self.references[key] = owners

    def _changed(self, change: Change) -> None:
        key, meta = change.key, change.item.body["metadata"]
        if change.type == "DELETED":
            uid = meta["uid"]
            if self.where.get(uid) == key:
                del self.where[uid]
            for each in self.references.pop(key, []):
                self.dependents.get(each["uid"], set()).discard(key)
                if each["uid"] in self.where:
                    self._look(self.where[each["uid"]])
            for dependent in self.dependents.pop(uid, ()):
                self._look(dependent)
            if key[1]:
                self._look_if_ending(("namespaces", "", key[1]))
            if key[::2] in emptying.FURNITURE:
                self._look(("namespaces", "", key[1]))
            self._look_if_ending((crds.KEY, "", key[0]))
            return
        fresh = meta.get("ownerReferences") and self.references.get(key) != meta["ownerReferences"]
        self._index(key, change.item.body)
        if fresh or meta.get("deletionTimestamp") or (key[0] == "namespaces" and change.type == "ADDED"):
            self._look(key)
            if meta.get("deletionTimestamp"):
                for dependent in self.dependents.get(meta["uid"], ()):
                    self._look(dependent)

    def _look(self, key: Key) -> None:
        self.queue[key] = None
        self.wake.set()

    def _look_if_ending(self, key: Key) -> None:
        item = self.api.store.get(key)
        if item is not None and item.body["metadata"].get("deletionTimestamp"):
            self._look(key)

    # -- the loop ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            await self.wake.wait()
            self.wake.clear()
            while self.queue:
                key = next(iter(self.queue))
                del self.queue[key]
                try:
                    await self.look(key)
                except (ApiError, StoreError) as error:
                    gone = isinstance(error, ApiError) and error.code == 404
                    if not gone:
                        log.warning("garbage collection of %s: %s", "/".join(key), error)
                        asyncio.get_running_loop().call_later(1.0, self._look, key)
                except Exception:  # one odd object must not end the collection of all others
                    log.exception("garbage collection of %s", "/".join(key))

    def target(self, key: Key) -> Target | None:
        resource = self.api.registry.stored(key[0])
        return Target(resource, key[1], key[2], "") if resource is not None else None

    async def look(self, key: Key) -> None:
        item, target = self.api.store.get(key), self.target(key)
        if item is None or target is None:
            return
        meta = item.body["metadata"]
        if key[0] == "namespaces":
            await emptying.namespace(self.api, target, item)
        if meta.get("deletionTimestamp"):
            if key[0] == crds.KEY and emptying.CLEANUP in (meta.get("finalizers") or ()):
                await emptying.definition(self.api, target, item)
            if ORPHAN in (meta.get("finalizers") or ()):
                await self._orphan(target, item)
            elif FOREGROUND in (meta.get("finalizers") or ()):
                await self._foreground(target, item)
        if meta.get("ownerReferences"):
            await self._owned(target, item)

    # -- owners and dependents -----------------------------------------------------------------------------------

    async def _owned(self, target: Target, item: Item) -> None:
        """Keeps, releases or deletes an object, by what has become of its owners."""
        meta = item.body["metadata"]
        solid: list[Json] = []
        waiting: list[Json] = []
        gone: list[Json] = []
        for each in meta["ownerReferences"]:
            where = self.where.get(each["uid"])
            owner = self.api.store.get(where) if where else None
            if owner is None or (where and where[1] and where[1] != meta.get("namespace")):
                (gone if self._known(each) else solid).append(each)
            elif owner.body["metadata"].get("deletionTimestamp") and FOREGROUND in (
                owner.body["metadata"].get("finalizers") or ()
            ):
                waiting.append(each)
            else:
                solid.append(each)
        if solid:
            if gone or waiting:
                kept = {each["uid"] for each in solid}
                await self._keep_owners(target, kept)
            return
        if meta.get("deletionTimestamp"):
            return
        policy = "Foreground" if waiting and self.dependents.get(meta["uid"]) else ""
        await delete(self.api, target, DeleteOptions(uid=meta["uid"], propagation=policy))

    def _known(self, reference: Json) -> bool:
        """Only an owner of a kind that is served here can be known to be gone."""
        group, _, version = reference["apiVersion"].rpartition("/")
        return any(
            each.group == group and each.kind == reference["kind"] for each in self.api.registry.all() if version
        )

    async def _keep_owners(self, target: Target, kept: set[str]) -> None:
        def compute(current: Item) -> Json:
            new = clone(current.body)
            left = [each for each in new["metadata"].get("ownerReferences") or () if each["uid"] in kept]
            if left:
                new["metadata"]["ownerReferences"] = left
            else:
                new["metadata"].pop("ownerReferences", None)
            return new

        await self.api.change(target, compute, WriteOptions(field_manager=MANAGER))

    async def _foreground(self, target: Target, item: Item) -> None:
        uid = item.body["metadata"]["uid"]
        blocking = False
        for key in list(self.dependents.get(uid, ())):
            references = self.references.get(key, [])
            blocking |= any(each["uid"] == uid and each.get("blockOwnerDeletion") for each in references)
            self._look(key)
        if not blocking:
            await drop_finalizer(self.api, target, FOREGROUND)

    async def _orphan(self, target: Target, item: Item) -> None:
        uid = item.body["metadata"]["uid"]
        for key in list(self.dependents.get(uid, ())):
            dependent = self.target(key)
            if dependent is not None:
                kept = {each["uid"] for each in self.references.get(key, [])} - {uid}
                await self._keep_owners(dependent, kept)
        await drop_finalizer(self.api, target, ORPHAN)


async def expire_events(api: Api) -> None:
    """Events are kept for an hour, as on a stock cluster."""
    resource = api.registry.find("", "v1", "events")
    assert resource is not None
    while True:
        limit = time.time() - EVENT_TTL_S
        for (namespace, name), item in list(api.store.all("events")):
            body = item.body
            last = body.get("lastTimestamp") or (body.get("series") or {}).get("lastObservedTime")
            moment = clock.parse(last or body.get("eventTime") or body["metadata"]["creationTimestamp"])
            if moment is not None and moment.timestamp() < limit:
                try:
                    await delete(api, Target(resource, namespace, name, ""), DeleteOptions())
                except (ApiError, StoreError) as error:
                    log.info("event %s/%s was not expired: %s", namespace, name, error)
        await asyncio.sleep(60)


def start(api: Api) -> list[asyncio.Task[None]]:
    """The server's own controllers, as tasks to cancel at the end."""
    return [
        asyncio.create_task(Collector(api).run(), name="onward-garbage"),
        asyncio.create_task(expire_events(api), name="onward-events"),
    ]
