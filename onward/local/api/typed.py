"""What an applied configuration must be: of declared fields and fitting types, with no item of a list twice."""

from __future__ import annotations

from typing import Any

from onward.local.api import fieldsets
from onward.local.api.decoding import json_name
from onward.local.api.schema import Schema

NAMES = {
    "string": "string", "time": "string", "bytes": "string", "boolean": "boolean",
    "integer": "numeric (int or float)", "number": "numeric (int or float)",
}  # fmt: skip
FITS: dict[str, tuple[type, ...]] = {"string": (str,), "boolean": (bool,), "numeric (int or float)": (int, float)}


def problems(schema: Schema, value: Any, path: str = "") -> list[str]:
    """Complaints, each with its path."""
    if value is None or schema.kind in ("any", "intstr", "quantity"):
        return []
    if schema.kind in ("object", "map"):
        if not isinstance(value, dict):
            return [f"{path}: expected map, got {_name(value)}"]
        found: list[str] = []
        for key, each in value.items():
            known = schema.fields.get(key)
            if schema.kind == "map":
                found += problems(schema.items or fieldsets.ANY, each, f"{path}.{key}")
            elif known is not None:
                found += problems(known.schema, each, f"{path}.{key}")
            elif not schema.preserve:
                found.append(f"{path}.{key}: field not declared in schema")
        return found
    if schema.kind == "list":
        if not isinstance(value, list):
            return [f"{path}: expected list, got {_name(value)}"]
        return _items(schema, value, path)
    wanted = NAMES.get(schema.kind, "string")
    fits = isinstance(value, FITS[wanted]) and not (isinstance(value, bool) and wanted != "boolean")
    return [] if fits else [f"{path}: expected {wanted}, got {_name(value)}"]


def _items(schema: Schema, value: list[Any], path: str) -> list[str]:
    found: list[str] = []
    seen: set[str] = set()
    for index, each in enumerate(value):
        where = f"{path}[{index}]"
        if schema.list_type in ("map", "set"):
            key = fieldsets.item_key(schema, each)
            where = path + fieldsets.shown((key,))
            if key in seen:
                found.append(f"{path}: duplicate entries for key {fieldsets.shown((key,))}")
            seen.add(key)
        found += problems(schema.items or fieldsets.ANY, each, where)
    return found


def _name(value: Any) -> str:
    return {"object": "map", "array": "list", "bool": "boolean", "number": "int"}.get(
        json_name(value), json_name(value)
    )
