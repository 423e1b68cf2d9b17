"""Strategic merge patch: lists merge by their keys, with the directives kubectl sends.

Directives: `$patch: delete|replace|merge`, `$retainKeys`, `$deleteFromPrimitiveList/F`, `$setElementOrder/F`.
"""

from __future__ import annotations

from typing import Any

from onward.local.api.schema import Schema
from onward.local.api.status import bad_request, internal
from onward.local.api.store import clone

Json = dict[str, Any]
ORDER, REMOVE = "$setElementOrder/", "$deleteFromPrimitiveList/"


def merge(schema: Schema | None, current: Any, patch: Any) -> Any:
    """`current` with `patch` applied; never changes its arguments."""
    if not isinstance(patch, dict):
        return clone(patch)
    return _objects(schema, current if isinstance(current, dict) else {}, patch)


def _child(schema: Schema | None, name: str) -> Schema | None:
    if schema is None:
        return None
    if schema.kind == "map":
        return schema.items
    field = schema.fields.get(name)
    return field.schema if field is not None else None


def _objects(schema: Schema | None, current: Json, patch: Json) -> Json:
    directive = patch.get("$patch")
    if directive == "delete":
        return {}
    if directive == "replace":
        return {key: clone(value) for key, value in patch.items() if key != "$patch"}
    if directive not in (None, "merge"):
        raise internal(f"unknown patch type: {str(directive)[:60]} in map: {go_text(patch)[:300]}")
    result = dict(current)
    retain = patch.get("$retainKeys")
    if retain is not None:
        if not isinstance(retain, list):
            raise bad_request("$retainKeys must be a list of names")
        result = {key: value for key, value in result.items() if key in retain}
    for key, value in patch.items():
        if key in ("$patch", "$retainKeys") or key.startswith(ORDER):
            continue
        if key.startswith(REMOVE):
            name = key[len(REMOVE) :]
            gone = value if isinstance(value, list) else []
            if isinstance(result.get(name), list):
                result[name] = [each for each in result[name] if each not in gone]
            continue
        if value is None:
            result.pop(key, None)
            continue
        child = _child(schema, key)
        if isinstance(value, dict):
            result[key] = _objects(child, result[key] if isinstance(result.get(key), dict) else {}, value)
        elif isinstance(value, list):
            result[key] = _lists(child, result.get(key), value, key)
        else:
            result[key] = value
    for key, value in patch.items():
        if key.startswith(ORDER):
            name = key[len(ORDER) :]
            child = _child(schema, name)
            if isinstance(result.get(name), list) and isinstance(value, list):
                before = current.get(name) if isinstance(current.get(name), list) else []
                result[name] = _ordered(child.merge_key if child else "", result[name], value, before or [])
    return result


def _lists(schema: Schema | None, current: Any, patch: list[Any], name: str) -> list[Any]:
    have = current if isinstance(current, list) else []
    if schema is None or "merge" not in schema.patch:
        return [clone(each) for each in patch if not (isinstance(each, dict) and each.get("$patch") == "replace")]
    key = schema.merge_key
    if not key:  # a list of plain values: a set
        return _ordered("", [*have, *[each for each in patch if each not in have]], patch, have)
    if any(isinstance(each, dict) and each.get("$patch") == "replace" for each in patch):
        return [clone(each) for each in patch if not (isinstance(each, dict) and "$patch" in each)]
    result = list(have)
    for each in patch:
        if not isinstance(each, dict):
            raise bad_request(f"{name}: each element of the patch must be an object with its merge key {key}")
        if key not in each:
            raise internal(f"map: {go_text(each)[:300]} does not contain declared merge key: {key}")
        at = next((i for i, old in enumerate(result) if isinstance(old, dict) and old.get(key) == each[key]), None)
        if each.get("$patch") == "delete":
            if at is not None:
                del result[at]
        elif at is None:
            result.append(_objects(schema.items, {}, each))
        else:
            result[at] = _objects(schema.items, result[at], each)
    return _ordered(key, result, patch, have)


def _ordered(key: str, values: list[Any], wanted: list[Any], before: list[Any]) -> list[Any]:
    """What the patch names comes in its order, the rest in the order it had; where the two meet, what stood first
    before does so again, and what is new comes first."""

    def name(each: Any) -> Any:
        return each.get(key) if key and isinstance(each, dict) else each

    order, old = [name(each) for each in wanted], [name(each) for each in before]
    named = sorted((each for each in values if name(each) in order), key=lambda each: order.index(name(each)))
    rest = [each for each in values if name(each) not in order]
    result: list[Any] = []
    while named and rest:
        mine, other = name(named[0]), name(rest[0])
        stays = mine in old and other in old and old.index(other) < old.index(mine)
        result.append(rest.pop(0) if stays else named.pop(0))
    return [*result, *named, *rest]


def go_text(value: Any) -> str:
    """A value as Go prints it."""
    if isinstance(value, dict):
        return "map[" + " ".join(f"{key}:{go_text(value[key])}" for key in sorted(value)) + "]"
    if isinstance(value, list):
        return "[" + " ".join(map(go_text, value)) + "]"
    return {None: "<nil>", True: "true", False: "false"}.get(value, str(value)) if not isinstance(value, str) else value
