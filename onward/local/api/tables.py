"""Server-side tables: the columns kubectl prints, per kind, and those a CRD asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onward.local.api import jsonpath
from onward.local.api.clock import age
from onward.local.api.columns import COLUMNS, EVENTS
from onward.local.api.podcolumns import completion
from onward.local.api.registry import Resource

Json = dict[str, Any]
Row = Callable[[Json], list[Any]]


def table(
    resource: Resource,
    bodies: list[Json],
    rv: int,
    *,
    include: str = "",
    headings: bool = True,
    token: str = "",
) -> Json:
    """A Table of these objects. `include` is the request's includeObject: Metadata (default), Object or None."""
    columns, _ = layout(resource)
    rows = [row(resource, body, include) for body in bodies]
    return {
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": str(rv)},
        "columnDefinitions": columns if headings else None, "rows": rows,
    }  # fmt: skip


def row(resource: Resource, body: Json, include: str = "") -> Json:
    """One row: what its columns say, and of the object what was asked for."""
    columns, cells = layout(resource)
    try:
        filled = cells(body)
    except (KeyError, TypeError, ValueError, AttributeError):
        # A field that is missing where every sane object has it: one odd object must not hide the whole list.
        filled = [body["metadata"]["name"], *["<invalid>"] * (len(columns) - 1)]
    shown: Json = {"cells": filled, "object": None}
    if resource.key == "pods" and (ending := completion(body)):
        shown = {"cells": filled, "conditions": [ending], "object": None}
    if include == "Object":
        shown["object"] = body
    elif include != "None":
        meta = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": body["metadata"]}
        shown["object"] = meta
    return shown


def _column(name: str, type_: str = "string", priority: int = 0, format_: str = "", description: str = "") -> Json:
    return {"name": name, "type": type_, "format": format_, "description": description or name, "priority": priority}


TYPES = {"#": "integer", "?": "boolean", "@": "date"}
NAME = _column("Name", format_="name")
AGE = _column("Age")


_known: dict[int, tuple[Resource, list[Json], Row]] = {}


def layout(resource: Resource) -> tuple[list[Json], Row]:
    """The column definitions of a resource, and how to fill them; worked out once."""
    found = _known.get(id(resource))
    if found is None or found[0] is not resource:
        if len(_known) > 1000:  # CRDs that came and went
            _known.clear()
        found = _known[id(resource)] = (resource, *_layout(resource))
    return found[1], found[2]


def _layout(resource: Resource) -> tuple[list[Json], Row]:
    if resource.custom:
        return _custom(resource)
    key = EVENTS if resource.storage == "events" else resource.key
    if key not in COLUMNS:
        return [NAME, AGE], lambda body: [body["metadata"]["name"], age(body["metadata"].get("creationTimestamp"))]
    listed, fill = COLUMNS[key]
    columns = []
    for text in listed.split("|"):
        name = text.rstrip("+#?@")
        type_ = next((TYPES[mark] for mark in TYPES if mark in text), "string")
        if name == "Name":
            columns.append({**NAME, "priority": int("+" in text)})
        else:
            columns.append(_column(name, type_, int("+" in text)))
    return columns, fill


def _custom(resource: Resource) -> tuple[list[Json], Row]:
    if not resource.columns:
        return [NAME, AGE], lambda body: [body["metadata"]["name"], age(body["metadata"].get("creationTimestamp"))]
    columns = [NAME]
    paths: list[tuple[jsonpath.Path, str]] = []
    for each in resource.columns:
        columns.append(
            _column(
                each["name"], each["type"], each.get("priority", 0), each.get("format", ""), each.get("description", "")
            )
        )
        paths.append((jsonpath.parse(each["jsonPath"]), each["type"]))

    def fill(body: Json) -> list[Any]:
        cells: list[Any] = [body["metadata"]["name"]]
        for path, type_ in paths:
            cells.append(_cell(path.first(body), type_))
        return cells

    return columns, fill


def _cell(value: Any, type_: str) -> Any:
    if value is None:
        return None
    if type_ == "date":
        return age(value) if isinstance(value, str) else None
    if type_ == "string":
        if isinstance(value, bool):
            return str(value).lower()
        return value if isinstance(value, str) else jsonpath.show(value)
    if type_ == "integer":
        return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if type_ == "number":
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if type_ == "boolean":
        return value if isinstance(value, bool) else None
    return value
