"""Sets of fields, as managedFields writes them (FieldsV1): the leaves of an object, and merging and removing by them.

A path is a tuple of elements `f:name`, `k:{"name":"a"}` (an item of a list with keys) or `v:"x"` (an item of a set).
Atomic lists, maps and structs are leaves.
"""

from __future__ import annotations

from typing import Any

import msgspec

from onward.local.api.schema import Field, Schema
from onward.local.api.store import clone

Json = dict[str, Any]
Path = tuple[str, ...]
Leaves = dict[Path, Any]
ANY = Schema("any")
_sorted = msgspec.json.Encoder(order="sorted").encode


def child_of(schema: Schema, name: str) -> tuple[Schema, bool]:
    """The type of a field and whether it is atomic there. Unknown ones are guessed from their value."""
    if schema.kind == "map":
        return schema.items or ANY, False
    field: Field | None = schema.fields.get(name)
    return (field.schema, field.atomic) if field is not None else (ANY, False)


def item_key(schema: Schema, item: Any) -> str:
    """`k:...` of an item in a list with keys; keys that were left out take their default."""
    keys: Json = {}
    fields = schema.items.fields if schema.items else {}
    for name in schema.keys:
        if isinstance(item, dict) and name in item:
            keys[name] = item[name]
        elif name in fields and fields[name].default is not None:
            keys[name] = fields[name].default
    return "k:" + _sorted(keys).decode()


def leaves(schema: Schema, value: Any, atomic: bool = False, path: Path = (), into: Leaves | None = None) -> Leaves:
    """Every leaf of a value with what it holds. Items of keyed lists are listed themselves, too."""
    found: Leaves = {} if into is None else into
    if isinstance(value, dict) and not atomic and value and schema.kind in ("object", "map", "any"):
        for name, each in value.items():
            child, whole = child_of(schema, name)
            leaves(child, each, whole, (*path, f"f:{name}"), found)
    elif isinstance(value, list) and schema.list_type == "map" and schema.keys and not atomic:
        if not value:
            found[path] = value
        for each in value:
            here = (*path, item_key(schema, each))
            found[here] = None
            leaves(schema.items or ANY, each, False, here, found)
    elif isinstance(value, list) and schema.list_type == "set" and not atomic:
        if not value:
            found[path] = value
        for each in value:
            own = "v:" + _sorted(each).decode()
            found[path + (own,)] = each
    else:
        found[path] = value
    return found


def write(paths: set[Path]) -> Json:
    """FieldsV1."""
    root: Json = {}
    for path in sorted(paths):
        place = root
        for element in path:
            place = place.setdefault(element, {})
        if path[-1].startswith("k:"):
            place["."] = {}
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
    if isinstance(wanted, dict) and isinstance(live, dict) and not atomic and schema.kind in ("object", "map", "any"):
        result = dict(live)
        for name, each in wanted.items():
            child, whole = child_of(schema, name)
            result[name] = merge(child, live.get(name), each, whole)
        return result
    if isinstance(wanted, list) and isinstance(live, list) and not atomic:
        if schema.list_type == "set":
            return [*live, *[each for each in wanted if each not in live]]
        if schema.list_type == "map" and schema.keys:
            items = list(live)
            places = {item_key(schema, each): index for index, each in enumerate(items)}
            for each in wanted:
                key = item_key(schema, each)
                if key in places:
                    items[places[key]] = merge(schema.items or ANY, items[places[key]], each)
                else:
                    items.append(clone(each))
            return items
    return clone(wanted)


def remove(schema: Schema, value: Any, path: Path) -> None:
    """Takes one leaf out of a value, in place; containers that become empty by it go too."""
    if not path:
        return
    element, rest = path[0], path[1:]
    if element.startswith("f:") and isinstance(value, dict):
        name = element[2:]
        if name not in value:
            return
        if not rest:
            del value[name]
            return
        child, _ = child_of(schema, name)
        remove(child, value[name], rest)
        if value[name] in ({}, []):
            del value[name]
    elif isinstance(value, list):
        for index, each in enumerate(value):
            mine = item_key(schema, each) if element.startswith("k:") else "v:" + _sorted(each).decode()
            if mine == element:
                if rest:
                    remove(schema.items or ANY, each, rest)
                else:
                    del value[index]
                return


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
