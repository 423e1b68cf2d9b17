"""What a built-in object always shows: structs that are part of it, and fields that are written even when empty.

The real server's objects are Go structs, whose zero values are there to read and to compare with.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from onward.local.api.schema import Field, Schema

Json = dict[str, Any]
PLAIN: dict[str, Any] = {"string": "", "bytes": None, "integer": 0, "number": 0, "boolean": False, "intstr": 0}
OMITTED = ("creationTimestamp",)


def complete(schema: Schema, value: Any) -> None:
    """Adds what is missing, in place, all the way down. Kinds of CRDs have no such fields."""
    if isinstance(value, list):
        for each in value:
            complete(schema.items or schema, each)
    elif schema.kind == "map" and isinstance(value, dict):
        for each in value.values():
            complete(schema.items or schema, each)
    elif schema.typed and isinstance(value, dict):
        for name, child in value.items():
            if name in schema.fields and isinstance(child, (dict, list)):
                complete(schema.fields[name].schema, child)
        for name, field in _always(schema):
            if name not in value:
                value[name] = zero(field.schema) if field.schema.typed else PLAIN.get(field.schema.kind)


def zero(schema: Schema) -> Json:
    """The empty object of a type."""
    found: Json = {}
    complete(schema, found)
    return found


@cache
def _always(schema: Schema) -> tuple[tuple[str, Field], ...]:
    """The fields of a struct that are always there."""
    return tuple(
        (name, field)
        for name, field in schema.fields.items()
        if not (field.pointer and not field.written)
        and name not in OMITTED
        and (field.written or field.schema.typed or field.schema.kind == "time")
        and not (field.pointer and field.schema.typed)
    )
