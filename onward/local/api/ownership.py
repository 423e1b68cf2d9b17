"""managedFields: who owns which field."""

from __future__ import annotations

from typing import Any

from onward.local.api.registry import Resource

Json = dict[str, Any]


def on_create(resource: Resource, body: Json, manager: str, given: Any) -> None:
    """Skeleton; filled in with server-side apply."""


def on_update(
    resource: Resource, old: Json, new: Json, manager: str, subresource: str, given: Any, operation: str
) -> None:
    if given:
        new["metadata"]["managedFields"] = given
