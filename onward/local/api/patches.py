"""PATCH: which kind of patch it is, and what it makes of the object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.local.api import applying, patching, strategic
from onward.local.api.decoding import parse
from onward.local.api.request import Target, WriteOptions
from onward.local.api.rest import Api
from onward.local.api.schema import Schema
from onward.local.api.status import bad_request, unsupported_media
from onward.local.api.store import Item
from onward.local.api.views import shown_form

Json = dict[str, Any]
TYPES = (
    "application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)  # fmt: skip


async def patch(
    api: Api, target: Target, content: str, raw: bytes, options: WriteOptions, query: Mapping[str, str]
) -> tuple[Item, bool]:
    """The patched object, and whether it was created by it (server-side apply can)."""
    resource = target.resource
    if content.split(";")[0].strip() == TYPES[3]:
        return await applying.apply(api, target, raw, options, query)

    def compute(current: Item) -> Json:
        shown = shown_form(resource, current.body)
        return api.decode(resource, apply_to(resource.schema, shown, content, raw, resource.custom), options)

    return await api.change(target, compute, options), False


def apply_to(schema: Schema, current: Json, content: str, raw: bytes, custom: bool = False) -> Any:
    """A JSON, merge or strategic patch applied to an object."""
    kind = content.split(";")[0].strip()
    if kind not in TYPES[:3] or (kind == TYPES[2] and custom):
        raise unsupported_media([each for each in TYPES if not (custom and each == TYPES[2])])
    document = parse(raw, kind)
    if kind == TYPES[0]:
        return patching.json_patch(current, document)
    if not isinstance(document, dict):
        raise bad_request("a merge patch must be an object")
    if kind == TYPES[1]:
        return patching.merge(current, document)
    return strategic.merge(schema, current, document)
