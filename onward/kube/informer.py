"""An informer: what the server holds of one kind, kept up to date, and a word on each change.

List once, then watch from that version. Bookmarks move the version on while nothing happens, so a watch that breaks is
taken up again without a new list; 410 (the version is too old) is the one case that lists again, and what vanished
meanwhile is then reported as deleted. Handlers hear of an object's newest state, not of each state it went through.

Whoever writes an object tells the informer what the server answered (`learn`, `unlearn`), and so reads its own
writes; a watch that is behind does not take them back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from onward.kube.client import ApiError, Client, Unreachable, backoff_s
from onward.kube.objects import Obj, Resource, key_of, newer, uid_of, version_of
from onward.log import get_logger

log: logging.Logger = get_logger("kube.informer")

WATCH_S = 300
Handler = Callable[[Obj | None, Obj | None], None]  # (before, after); None: did not exist, or does not any more


async def happened(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for it. Not by `wait_for`: before Python 3.12 that forgets a cancellation that comes with the event."""
    waiter = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiter}, timeout=timeout_s)
    finally:
        waiter.cancel()
    return event.is_set()


class Informer:
    """Start with `run()` in a task; read `get` and iterate at any time after `synced()`."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        namespace: str | None = None,
        *,
        on_change: Handler | None = None,
        **params: str,
    ) -> None:
        self._client, self.resource, self._namespace, self._params = client, resource, namespace, params
        self._objects: dict[str, Obj] = {}
        self._handlers: list[Handler] = [on_change] if on_change else []
        self._synced = asyncio.Event()
        self._version = ""
        self._last_list: Obj = {}
        self.lists = 0  # how often everything had to be read; tests and metrics look at it
        self.healthy = False

    def subscribe(self, handler: Handler) -> None:
        self._handlers.append(handler)

    def subscribe_first(self, handler: Handler) -> None:
        """Called before all others: they may look at what it keeps."""
        self._handlers.insert(0, handler)

    async def synced(self, timeout_s: float = 60.0) -> None:
        if not await happened(self._synced, timeout_s):
            raise Unreachable(f"{self.resource.plural} could not be listed within {timeout_s:g} s")

    def get(self, key: str) -> Obj | None:
        return self._objects.get(key)

    def __iter__(self) -> Iterator[Obj]:
        return iter(list(self._objects.values()))

    def __len__(self) -> int:
        return len(self._objects)

    async def run(self) -> None:
        """For ever; ends when cancelled."""
        failures = 0
        while True:
            try:
                if not self._version:
                    await self._list()
                failures = await self._watch(failures)
            except ApiError as e:
                self.healthy = False
                if e.code == 410 or e.reason in ("Expired", "Gone"):
                    log.info("%s: the version is too old; listing again", self.resource.plural)
                    self._version = ""
                    continue
                log.warning("%s: %s", self.resource.plural, e)
                failures += 1
            except Unreachable as e:
                self.healthy = False
                log.info("%s", e)
                failures += 1
            if failures:
                await asyncio.sleep(backoff_s(failures))

    async def _list(self) -> None:
        whole = await self._client.list(self.resource, self._namespace, **self._params)
        self.lists += 1
        if newer(self._last_list, whole):  # the server has gone back to an older state: what we know is not newer
            for key in list(self._objects):
                self._put(key, None)
        self._last_list = {"metadata": whole["metadata"]}
        found = {key_of(obj): self._complete(obj) for obj in whole["items"]}
        for key in [key for key, obj in self._objects.items() if key not in found and not newer(obj, whole)]:
            self._put(key, None)
        for key, obj in found.items():
            self._put(key, obj)
        self._version = version_of(whole)
        self._synced.set()
        self.healthy = True

    def _complete(self, obj: Obj) -> Obj:
        """Items of a list come without their kind."""
        obj.setdefault("apiVersion", self.resource.api_version)
        obj.setdefault("kind", self.resource.kind)
        return obj

    async def _watch(self, failures: int) -> int:
        params = {"timeoutSeconds": str(WATCH_S), **self._params}
        async for event in self._client.watch(self.resource, self._namespace, self._version, **params):
            failures = 0
            self.healthy = True
            obj = event["object"]
            match event["type"]:
                case "ADDED" | "MODIFIED":
                    self._put(key_of(obj), self._complete(obj))
                case "DELETED":
                    self._put(key_of(obj), None, last=obj)
                case "BOOKMARK":
                    pass
            self._version = version_of(obj) or self._version
        return failures

    def learn(self, obj: Obj) -> None:
        """What the server answered to a write of ours.

        The watch may be ahead of the answer, or as far: the answer to a deletion has the version of the end. What the
        watch has passed and does not hold is gone, and nobody would ever say so again: it is not taken in.
        """
        reached = {"metadata": {"resourceVersion": self._version}}
        passed = version_of(obj) == self._version or newer(reached, obj)
        if key_of(obj) in self._objects or not passed:
            self._put(key_of(obj), self._complete(obj))

    def unlearn(self, obj: Obj) -> None:
        """The server says that this very object is no more."""
        held = self._objects.get(key_of(obj))
        if held is not None and uid_of(held) == uid_of(obj):
            self._put(key_of(obj), None)

    def _put(self, key: str, new: Obj | None, last: Obj | None = None) -> None:
        old = self._objects.get(key)
        if old is not None and newer(old, new if new is not None else last):
            return  # it speaks of what was before something that we know already
        if new is None:
            self._objects.pop(key, None)
            old = last or old
            if old is None:
                return
        else:
            if old is not None and version_of(old) == version_of(new):
                return
            self._objects[key] = new
        for handler in self._handlers:
            handler(old, new)
