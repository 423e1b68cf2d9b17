"""Validation of objects, all problems at once, in the real server's words."""

from __future__ import annotations

from typing import Any

from onward.local.api.registry import Registry, Resource
from onward.local.api.status import Cause
from onward.local.api.store import Store

Json = dict[str, Any]


def create(store: Store, registry: Registry, resource: Resource, body: Json) -> list[Cause]:
    from onward.local.api.status import required

    if not body["metadata"].get("name"):
        return [required("metadata.name", "name or generateName is required")]
    return []


def update(store: Store, registry: Registry, resource: Resource, new: Json, old: Json, subresource: str) -> list[Cause]:
    return []
