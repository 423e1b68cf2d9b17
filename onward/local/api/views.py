"""One stored object, several faces: events in two groups, custom kinds in several versions, metadata alone."""

from __future__ import annotations

from typing import Any

from onward.local.api.registry import Resource
from onward.local.api.schema import Schema, builtin_types
from onward.local.api.store import Item, encode

Json = dict[str, Any]

# events.k8s.io name -> core name; both groups show the same objects
EVENT_FIELDS = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
CORE_EVENT = builtin_types().kind("core.Event")
_BACK = {core: new for new, core in EVENT_FIELDS.items()}


def stored_form(resource: Resource, body: Json) -> Json:
    """The object as it is kept: events in their core form, anything else as it came."""
    if resource.storage == "events" and resource.group:
        body = {EVENT_FIELDS.get(key, key): value for key, value in body.items()}
        body["apiVersion"] = "v1"
    return body


def shown_form(resource: Resource, body: Json) -> Json:
    """The object as this resource shows it. Never changes `body`."""
    if resource.storage == "events" and resource.group:
        renamed = {_BACK.get(key, key): value for key, value in body.items()}
        renamed["apiVersion"] = resource.api_version
        for name in ("reportingController", "reportingInstance"):
            if not renamed.get(name):
                renamed.pop(name, None)
        return renamed
    if body.get("apiVersion") != resource.api_version:
        return {**body, "apiVersion": resource.api_version}
    return body


def kept_schema(resource: Resource) -> Schema:
    """The type of objects as they are kept."""
    return CORE_EVENT if resource.storage == "events" else resource.schema


def raw(resource: Resource, item: Item) -> bytes:
    if resource.key != "events" and not resource.custom:
        return item.raw
    body = item.body
    shown = shown_form(resource, body)
    return item.raw if shown is body else encode(shown)


def raw_in_list(resource: Resource, item: Item) -> bytes:
    """As an element of a list: built-in kinds leave apiVersion and kind to the list, as the real server does."""
    data = raw(resource, item)
    if resource.custom:
        return data
    prefix = f'{{"apiVersion":"{resource.api_version}","kind":"{resource.kind}",'.encode()
    return b"{" + data[len(prefix) :] if data.startswith(prefix) else data


def partial(body: Json) -> Json:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": body["metadata"]}
