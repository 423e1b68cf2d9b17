"""PATCH: which kind of patch it is, and what it makes of the object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.local.api import patching
from onward.local.api.decoding import parse
from onward.local.api.request import Target, WriteOptions
from onward.local.api.rest import Api
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
    kind = content.split(";")[0].strip()
    resource = target.resource
    if kind not in TYPES or (kind.startswith("application/strategic") and resource.custom):
        raise unsupported_media([each for each in TYPES if not (resource.custom and "strategic" in each)])
    document = parse(raw, kind)

    def compute(current: Item) -> Json:
        shown = shown_form(resource, current.body)
        if kind == TYPES[0]:
            result = patching.json_patch(shown, document)
        else:
            if not isinstance(document, dict):
                raise bad_request("a merge patch must be an object")
            result = patching.merge(shown, document)
        return api.decode(resource, result, options)

    return await api.change(target, compute, options), False
