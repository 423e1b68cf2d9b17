"""Sets of fields, as managedFields writes them (FieldsV1): what an object has, and how two versions of it differ.

A path is a tuple of elements `f:name`, `k:{"name":"a"}` (an item of a list with keys) or `v:"x"` (an item of a set).
Atomic lists, maps and structs are leaves. A map or struct itself is in a set when it came or went as a whole, which is
what the "." of FieldsV1 says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from onward.local.api.schema import Field, Schema
from onward.local.api.store import clone

Json = dict[str, Any]
Path = tuple[str, ...]
ANY = Schema("any")
ABSENT: Any = object()
_sorted = msgspec.json.Encoder(order="sorted").encode


def child_of(schema: Schema, name: str) -> tuple[Schema, bool]:
    """The type of a field and whether it is atomic there. Unknown ones are guessed from their value."""
    if schema.kind == "map":
        return schema.items or ANY, (schema.items or ANY).atomic
    known: Field | None = schema.fields.get(name)
    return (known.schema, known.atomic or known.schema.atomic) if known is not None else (ANY, False)


def item_key(schema: Schema, item: Any) -> str:
    """The element of an item: `k:...` in a list with keys (those left out take their default), `v:...` in a set."""
    if schema.list_type == "set":
        return "v:" + _sorted(item).decode()
    keys: Json = {}
    fields = schema.items.fields if schema.items else {}
    for name in schema.keys:
        if isinstance(item, dict) and name in item:
            keys[name] = item[name]
        elif name in fields and fields[name].default is not None:
            keys[name] = fields[name].default
    return "k:" + _sorted(keys).decode()


def _is_map(schema: Schema, atomic: bool, *values: Any) -> bool:
    shaped = any(isinstance(each, dict) for each in values)
    fits = all(each is ABSENT or each is None or isinstance(each, dict) for each in values)
    return shaped and fits and not atomic and schema.kind in ("object", "map", "any")


def _is_list(schema: Schema, atomic: bool, *values: Any) -> bool:
    shaped = any(isinstance(each, list) for each in values)
    fits = all(each is ABSENT or each is None or isinstance(each, list) for each in values)
    keyed = schema.list_type == "set" or (schema.list_type == "map" and bool(schema.keys))
    return shaped and fits and not atomic and keyed


@dataclass
class Difference:
    """Paths that are new, gone, or have another value."""

    added: set[Path] = field(default_factory=set)
    removed: set[Path] = field(default_factory=set)
    changed: set[Path] = field(default_factory=set)

    def added_or_changed(self) -> set[Path]:
        return self.added | self.changed


def compare(schema: Schema, old: Any, new: Any) -> Difference:
    found = Difference()
    _compare(schema, False, old, new, (), found)
    return found


def _compare(schema: Schema, atomic: bool, old: Any, new: Any, path: Path, found: Difference) -> None:
    deep = False
    if _is_map(schema, atomic, old, new):
        before, after = old or {} if old is not ABSENT else {}, new or {} if new is not ABSENT else {}
        deep = bool(before or after)
        for name in {**before, **after}:
            child, whole = child_of(schema, name)
            _compare(child, whole, before.get(name, ABSENT), after.get(name, ABSENT), (*path, f"f:{name}"), found)
    elif _is_list(schema, atomic, old, new):
        items = schema.items or ANY
        before, after = _by_key(schema, old), _by_key(schema, new)
        deep = bool(before or after)
        for key in {**before, **after}:
            was, now = before.get(key, ABSENT), after.get(key, ABSENT)
            repeated = isinstance(was, _Several) or isinstance(now, _Several)
            _compare(items, items.atomic or repeated, was, now, (*path, key), found)
    if not path:
        return
    if old is ABSENT:
        found.added.add(path)
    elif new is ABSENT:
        found.removed.add(path)
    elif not deep and old != new:
        found.changed.add(path)


class _Several(list[Any]):
    """Items that share one key: nobody can own parts of them."""


def _by_key(schema: Schema, items: Any) -> Json:
    found: Json = {}
    for each in items if isinstance(items, list) else ():
        key = item_key(schema, each)
        if key not in found:
            found[key] = each
        elif isinstance(found[key], _Several):
            found[key].append(each)
        else:
            found[key] = _Several([found[key], each])
    return found


def members(schema: Schema, value: Any) -> set[Path]:
    """What who applies a value claims: its leaves, items of lists, entries of maps."""
    found: set[Path] = set()
    _members(schema, False, value, (), found)
    return found


def _members(schema: Schema, atomic: bool, value: Any, path: Path, found: set[Path]) -> None:
    if _is_map(schema, atomic, value):
        for name, each in value.items():
            child, whole = child_of(schema, name)
            here = (*path, f"f:{name}")
            _members(child, whole, each, here, found)
            if each is None or each == {} or name not in schema.fields:
                found.add(here)
    elif _is_list(schema, atomic, value):
        items = schema.items or ANY
        for each in value:
            here = (*path, item_key(schema, each))
            _members(items, items.atomic, each, here, found)
            found.add(here)
    elif path and value is not None:
        found.add(path)


def with_structs(schema: Schema, paths: Iterable[Path]) -> set[Path]:
    """The set, and every struct field on the way to its paths (entries of maps and items of lists are not added)."""
    found = set(paths)
    for path in list(found):
        place = schema
        for index, element in enumerate(path):
            if element.startswith("f:"):
                if element[2:] in place.fields:
                    found.add(path[: index + 1])
                place = child_of(place, element[2:])[0]
            else:
                place = place.items or ANY
    return found


def write(paths: set[Path]) -> Json:
    """FieldsV1."""
    root: Json = {}
    for path in sorted(paths):
        place = root
        for index, element in enumerate(path):
            if index and path[:index] in paths:
                place["."] = {}
            place = place.setdefault(element, {})
    return root


def read(tree: Any) -> set[Path]:
    found: set[Path] = set()

    def walk(node: Any, path: Path) -> None:
        if path and (not isinstance(node, dict) or not node or "." in node):
            found.add(path)
        if isinstance(node, dict):
            for element, child in node.items():
                if element != ".":
                    walk(child, (*path, element))

    walk(tree, ())
    return found


def merge(schema: Schema, live: Any, wanted: Any, atomic: bool = False) -> Any:
    """`live` with everything `wanted` says; what it does not mention stays."""
    if isinstance(wanted, dict) and isinstance(live, dict) and _is_map(schema, atomic, wanted, live):
        result = dict(live)
        for name, each in wanted.items():
            child, whole = child_of(schema, name)
            result[name] = merge(child, live.get(name), each, whole)
        return result
    if isinstance(wanted, list) and isinstance(live, list) and _is_list(schema, atomic, wanted, live):
        return _merged_items(schema, live, wanted)
    return clone(wanted)


def _merged_items(schema: Schema, live: list[Any], wanted: list[Any]) -> list[Any]:
    """In the order of who applies; what only the live list has stays where it stood among them."""
    items = schema.items or ANY
    mine = {item_key(schema, each): each for each in wanted}
    have = {item_key(schema, each): each for each in live}
    result: list[Any] = []
    waiting = list(mine)
    shared = [key for key in mine if key in have]

    def put_mine(upto: str) -> None:
        while waiting:
            key = waiting.pop(0)
            known = key in have and schema.list_type == "map"
            result.append(merge(items, have[key], mine[key], items.atomic) if known else clone(mine[key]))
            if key == upto:
                return

    for key, each in have.items():
        if key not in mine:
            result.append(each)
        elif shared and key == shared[0]:
            put_mine(shared.pop(0))
    put_mine("")
    return result


def remove(schema: Schema, value: Any, paths: set[Path], atomic: bool = False) -> Any:
    """The value without these paths; containers that become empty by it are ABSENT."""
    if _is_map(schema, atomic, value):
        result: Any = {}
        for name, each in value.items():
            element = f"f:{name}"
            if (element,) in paths:
                continue
            child, whole = child_of(schema, name)
            kept = _without(child, each, paths, element, whole)
            if kept is not ABSENT:
                result[name] = kept
        return result if result or not value else ABSENT
    if _is_list(schema, atomic, value):
        items = schema.items or ANY
        result = []
        for each in value:
            element = item_key(schema, each)
            if (element,) in paths:
                continue
            kept = _without(items, each, paths, element, items.atomic)
            if kept is not ABSENT:
                result.append(kept)
        return result if result or not value else ABSENT
    return value


def _without(schema: Schema, value: Any, paths: set[Path], element: str, atomic: bool) -> Any:
    below = {path[1:] for path in paths if path[0] == element and len(path) > 1}
    return remove(schema, value, below, atomic) if below else value


def shown(path: Path) -> str:
    """A path as people read it: .spec.containers[name="a"].image"""
    text = ""
    for element in path:
        if element.startswith("f:"):
            text += "." + element[2:]
        elif element.startswith("k:"):
            keys = msgspec.json.decode(element[2:])
            text += "[" + ",".join(f"{name}={msgspec.json.encode(each).decode()}" for name, each in keys.items()) + "]"
        else:
            text += f"[={element[2:]}]"
    return text
