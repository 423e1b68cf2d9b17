"""The watch stream: the past from the history, then the present, without a gap.

A watcher that falls too far behind is cut off; it resumes from its last resource version like after any other cut.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from onward.local.api import tables, views, zeros
from onward.local.api.registry import Resource
from onward.local.api.request import Target, check_list, flag, number, version_of
from onward.local.api.rest import Api
from onward.local.api.status import ApiError
from onward.local.api.store import Change, Item, encode

Json = dict[str, Any]
PARTING_S = 2.0
"""A watch that lasts no longer than this ends without a last bookmark."""
INITIAL_END = "k8s.io/initial-events-end"


class Encoder:
    """One event as a line of JSON, in the form the client asked for. Plain lines are made once for all watchers."""

    def __init__(self, resource: Resource, form: str, include: str = "") -> None:
        self.resource, self.form, self.include = resource, form, include
        self.first = True

    def line(self, type_: str, item: Item) -> bytes:
        if self.form == "":
            return b'{"type":"%s","object":%s}\n' % (type_.encode(), views.raw(self.resource, item))
        body = views.shown_form(self.resource, item.body)
        if self.form == "Table":
            shown = tables.table(self.resource, [body], item.rv, include=self.include, headings=self.first)
            self.first = False
        else:
            shown = views.partial(body)
        return encode({"type": type_, "object": shown}) + b"\n"

    def bookmark(self, rv: int, notes: Json | None = None) -> bytes:
        meta: Json = {"resourceVersion": str(rv)}
        if notes:
            meta["annotations"] = notes
        body: Json = {} if self.resource.custom else zeros.zero(self.resource.schema)
        body.update(kind=self.resource.kind, apiVersion=self.resource.api_version, metadata=meta)
        if self.form == "Table":
            body = tables.table(self.resource, [], rv, headings=self.first)
            if notes:
                body["rows"] = [{"cells": [], "object": views.partial({"metadata": meta})}]
        elif self.form:
            body = views.partial(body)
        return encode({"type": "BOOKMARK", "object": body}) + b"\n"


class Feed:
    """Durable changes of one resource for one watcher, from a point on."""

    def __init__(self, api: Api, target: Target, since: int) -> None:
        self.limit = api.settings.watch_queue
        self.queue: deque[Change] = deque(api.store.since(target.resource.key, since))
        self.wake = asyncio.Event()
        self.wake.set()
        self.overrun = False
        self.stop = api.store.listen(target.resource.key, self._offer)

    def _offer(self, change: Change) -> None:
        if len(self.queue) >= self.limit:
            self.overrun = True
        else:
            self.queue.append(change)
        self.wake.set()


def seen(change: Change, match: Any, namespace: str) -> tuple[str, Item] | None:
    """What a watcher with this selector sees of a change: objects come into view and leave it."""
    if namespace and change.key[1] != namespace:
        return None
    if match is None:
        return change.type, change.item
    now = change.type != "DELETED" and match(change.item.body)
    before = change.before is not None and match(change.before.body)
    if now:
        return ("MODIFIED" if before else "ADDED"), change.item
    if not before or change.before is None:
        return None
    if change.type == "DELETED":
        return "DELETED", change.item
    meta = {**change.before.body["metadata"], "resourceVersion": str(change.rv)}
    return "DELETED", Item(change.rv, {**change.before.body, "metadata": meta})


def error_line(error: ApiError) -> bytes:
    return encode({"type": "ERROR", "object": error.status()}) + b"\n"


async def stream(api: Api, target: Target, query: Mapping[str, str], encoder: Encoder) -> AsyncGenerator[bytes, None]:
    """Lines of one watch. The first is an empty one, which lets the caller send its headers at once."""
    match = api.selector(target, query)
    bookmarks = flag(query, "allowWatchBookmarks")
    check_list(query, watch=True)
    initial = flag(query, "sendInitialEvents")
    wanted = version_of(query.get("resourceVersion", ""), watch=True)
    timeout = number(query, "timeoutSeconds") or 1800 + (time.monotonic_ns() % 1800)
    deadline = time.monotonic() + timeout
    yield b""
    if wanted and wanted < api.store.compacted and not initial:
        text = f"too old resource version: {wanted} ({api.store.compacted})"
        yield error_line(ApiError(410, "Expired", text))
        return
    last = wanted
    fresh = initial or wanted == 0
    if wanted > api.store.rv:
        last = wanted  # a version of the future: events start after it, as on the real server
    feed = Feed(api, target, api.store.rv if fresh else wanted)
    try:
        if fresh:
            last = api.store.rv
            whole = Target(target.resource, target.namespace, "", "")
            items = [item for item in api.list(whole, {}).items if match is None or match(item.body)]
            lines = [encoder.line("ADDED", item) for item in items]
            for start in range(0, len(lines), 500):
                yield b"".join(lines[start : start + 500])
            if initial and bookmarks:
                yield encoder.bookmark(last, {INITIAL_END: "true"})
        async for chunk in _follow(api, target, encoder, feed, match, last, bookmarks, deadline):
            yield chunk
    finally:
        feed.stop()


async def _follow(
    api: Api, target: Target, encoder: Encoder, feed: Feed, match: Any, last: int, bookmarks: bool, deadline: float
) -> AsyncIterator[bytes]:
    marked = time.monotonic()
    parting = bookmarks and deadline - marked > PARTING_S
    while True:
        lines: list[bytes] = []
        while feed.queue and len(lines) < 500:
            change = feed.queue.popleft()
            if change.rv <= last:
                continue
            last = change.rv
            found = seen(change, match, target.namespace)
            if found is not None:
                lines.append(encoder.line(*found))
        if lines:
            yield b"".join(lines)
            continue
        if feed.overrun:
            return
        now = time.monotonic()
        if bookmarks and now - marked >= api.settings.bookmark_s:
            marked = now
            yield encoder.bookmark(max(last, api.store.rv))
        if now >= deadline:
            if parting:
                yield encoder.bookmark(max(last, api.store.rv))
            return
        feed.wake.clear()
        if feed.queue:
            continue
        wait = min(deadline - now, api.settings.bookmark_s if bookmarks else 3600.0)
        try:
            await asyncio.wait_for(feed.wake.wait(), max(wait, 0.01))
        except asyncio.TimeoutError:
            pass
