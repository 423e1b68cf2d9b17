"""PATCH: which kind of patch it is, and what it makes of the object."""

from __future__ import annotations

from typing import Any

from onward.local.api import applying, patching, strategic
from onward.local.api.decoding import Malformed, json_name, parse
from onward.local.api.request import Target, WriteOptions
from onward.local.api.rest import Api
from onward.local.api.schema import Schema
from onward.local.api.status import bad_request, unsupported_media
from onward.local.api.status import shown as shown_value
from onward.local.api.store import Item
from onward.local.api.views import shown_form

Json = dict[str, Any]
TYPES = (
    "application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)  # fmt: skip


def is_apply(content: str) -> bool:
    return content.split(";")[0].strip() == TYPES[3]


async def patch(api: Api, target: Target, content: str, raw: bytes, options: WriteOptions) -> tuple[Item, bool]:
    """The patched object, and whether it was created by it (server-side apply can)."""
    resource = target.resource
    if is_apply(content):
        return await applying.apply(api, target, raw, options)

    kind, document = read(content, raw, resource.custom)

    def compute(current: Item) -> Json:
        shown = shown_form(resource, current.body)
        wanted = apply_to(resource.schema, shown, kind, document)
        if not isinstance(wanted, dict):
            raise bad_request("the patch leaves no object")
        return api.decode(
            resource, wanted, options, strategic.go_text(document) if kind == TYPES[2] else shown_value(wanted)
        )

    return await api.change(target, compute, options), False


def read(content: str, raw: bytes, custom: bool = False) -> tuple[str, Any]:
    """Which of JSON, merge or strategic patch it is, and what it says."""
    kind = content.split(";")[0].strip()
    if custom and kind == TYPES[2]:
        raise unsupported_media([each for each in TYPES if each != TYPES[2]])
    if kind not in TYPES[:3]:
        raise unsupported_media()
    before = "" if kind == TYPES[2] else "error decoding patch: "
    try:
        document = parse(raw, kind)
    except Malformed as error:
        raise bad_request(f"{before}{error}") from None
    wanted, name = (list, "[]handlers.jsonPatchOp") if kind == TYPES[0] else (dict, "map[string]interface {}")
    if not isinstance(document, wanted):
        raise bad_request(f"{before}json: cannot unmarshal {json_name(document)} into Go value of type {name}")
    return kind, document


def apply_to(schema: Schema, current: Json, kind: str, document: Any) -> Any:
    """A patch that was read, applied to an object."""
    if kind == TYPES[0]:
        return patching.json_patch(current, document)
    return patching.merge(current, document) if kind == TYPES[1] else strategic.merge(schema, current, document)
