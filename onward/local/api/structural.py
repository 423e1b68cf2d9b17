"""CRD schemas at work: validation with all problems at once, and defaulting (pruning: `decoding.py`)."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable, Sized
from typing import Any

from onward.local.api import clock, regexps, rules
from onward.local.api.status import Cause, duplicate, required, shown, too_long, unsupported, wrong
from onward.local.api.store import clone

Json = dict[str, Any]


def default(schema: Json, value: Any) -> None:
    """Fills in defaults below `value`, in place. A null on a field that may not be null takes the default too."""
    if isinstance(value, dict):
        for name, child in schema.get("properties", {}).items():
            if "default" in child and (name not in value or (value[name] is None and not child.get("nullable"))):
                value[name] = clone(child["default"])
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


UNCHECKED = (
    "some validation rules were not checked because the object was invalid; correct the existing errors to complete "
    "validation"
)
Rules = list[tuple[Json, Any, str, Any]]
NUMBERS = (int, float)
TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: not isinstance(v, bool) and (isinstance(v, int) or (isinstance(v, float) and v.is_integer())),
    "number": lambda v: isinstance(v, NUMBERS) and not isinstance(v, bool),
}


def type_name(value: Any) -> str:
    if value is None:
        return "null"
    return next((name for name in ("boolean", "object", "array", "string", "integer") if TYPES[name](value)), "number")


# After one of these, rules are not asked: they might stumble over what is wrong anyway.
BLOCKING = {
    "FieldValueNotSupported", "FieldValueRequired", "FieldValueTooLong", "FieldValueTooMany", "FieldValueTypeInvalid",
}  # fmt: skip


def validate(schema: Json, value: Any, path: str = "", old: Any = None) -> list[Cause]:
    """Every problem of a value. `old` is what stood there before, for transition rules."""
    causes: list[Cause] = []
    asked: Rules = []
    _validate(schema, value, path, old, causes, asked)
    if any(each.reason in BLOCKING for each in causes):
        if rules.within(schema):
            causes.append(wrong("<nil>", None, UNCHECKED))
    else:
        for each in asked:
            causes.extend(rules.check(*each))
    return causes


def scale_problems(paths: Json, body: Json) -> list[Cause]:
    """Replicas, where a CRD says they are, must be a number that can be scaled to."""
    causes: list[Cause] = []
    for path in filter(None, (str(paths.get(f"{part}ReplicasPath") or "") for part in ("spec", "status"))):
        found: Any = body
        for step in path.strip(".").split("."):
            if found is not None and not isinstance(found, dict):
                causes.append(_odd(path, found, "map[string]interface{}"))
                found = None
            found = found.get(step) if found is not None else None
        if found is None:
            continue
        if not isinstance(found, int) or isinstance(found, bool):
            causes.append(_odd(path, found, "int64"))
        elif found < 0:
            causes.append(wrong(path, found, "should be a non-negative integer"))
        elif found > 2**31 - 1:
            causes.append(wrong(path, found, f"should be less than or equal to {2**31 - 1}"))
    return causes


def _odd(path: str, value: Any, wanted: str) -> Cause:
    kinds = {bool: "bool", str: "string", float: "float64", int: "int64", list: "[]interface {}"}
    kind = kinds.get(type(value), "map[string]interface {}")
    text = str(value) if not isinstance(value, (dict, list)) else shown(value)
    return wrong(path, 0, f"{path} accessor error: {text[:100]} is of the type {kind}, expected {wanted}")


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _mistyped(causes: list[Cause], path: str, name: str, wanted: str) -> None:
    where = f"{path} in body " if path else ""
    text = f'Invalid value: "{name}": {where}must be of type {wanted}: "{name}"'
    causes.append(Cause("FieldValueTypeInvalid", text, path or "<nil>"))


def _bad(causes: list[Cause], path: str, value: Any, why: str) -> None:
    where = f"{path} in body " if path else ""
    causes.append(wrong(path or "<nil>", value, where + why))


def _validate(schema: Json, value: Any, path: str, old: Any, causes: list[Cause], asked: Rules) -> None:
    free = bool(schema.get("x-kubernetes-int-or-string"))
    wanted = "integer,string" if free else schema.get("type", "")
    if value is None:
        if not schema.get("nullable") and wanted:
            _mistyped(causes, path, "null", wanted)
        return
    fits = not wanted or any(TYPES.get(each, lambda _: True)(value) for each in wanted.split(","))
    if not fits:
        _mistyped(causes, path, type_name(value), wanted)
    enum = schema.get("enum")
    if enum is not None and value not in enum:
        causes.append(unsupported(path, value, [each if isinstance(each, str) else shown(each) for each in enum]))
    if not fits:
        pass
    elif isinstance(value, dict):
        _object(schema, value, path, old, causes, asked)
    elif isinstance(value, list):
        _array(schema, value, path, old, causes, asked)
    elif isinstance(value, str):
        _string(schema, value, path, causes)
    elif isinstance(value, NUMBERS) and not isinstance(value, bool):
        _number(schema, value, path, causes)
    _combined(schema, value, path, causes, asked)
    if "x-kubernetes-validations" in schema and fits:
        asked.append((schema, value, path, old))


def _object(schema: Json, value: Json, path: str, old: Any, causes: list[Cause], asked: Rules) -> None:
    before = old if isinstance(old, dict) else {}
    for name in schema.get("required", ()):
        if name not in value:
            causes.append(required(_at(path, name)))
    properties = schema.get("properties", {})
    for name, child in properties.items():
        if name in value and not (path == "" and name == "metadata"):
            _validate(child, value[name], _at(path, name), before.get(name), causes, asked)
    extra = schema.get("additionalProperties")
    if isinstance(extra, dict):
        for name, each in value.items():
            if name not in properties:
                _validate(extra, each, _at(path, name), before.get(name), causes, asked)
    _count(schema, "Properties", value, path, causes)


def _count(schema: Json, what: str, value: Sized, path: str, causes: list[Cause]) -> None:
    least, most = schema.get(f"min{what}"), schema.get(f"max{what}")
    if least is not None and len(value) < least:
        _bad(causes, path, len(value), f"should have at least {least} {what.lower()}")
    if most is not None and len(value) > most:
        causes.append(Cause("FieldValueTooMany", f"Too many: {len(value)}: must have at most {most} items", path))


def _array(schema: Json, value: list[Any], path: str, old: Any, causes: list[Cause], asked: Rules) -> None:
    _count(schema, "Items", value, path, causes)
    items = schema.get("items")
    form, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys") or []
    before: dict[Any, Any] = {}
    if form == "map" and isinstance(old, list):
        before = {tuple(map(str, (e.get(k) for k in keys))): e for e in old if isinstance(e, dict)}
    seen: list[Any] = []
    for index, each in enumerate(value):
        where = f"{path}[{index}]"
        if form in ("map", "set"):
            own = {key: each.get(key) for key in keys} if form == "map" and isinstance(each, dict) else each
            if own in seen:
                causes.append(duplicate(where, own))
            seen.append(own)
        if isinstance(items, dict):
            mine = tuple(map(str, (each.get(k) for k in keys))) if isinstance(each, dict) else ()
            _validate(items, each, where, before.get(mine), causes, asked)


def _string(schema: Json, value: str, path: str, causes: list[Cause]) -> None:
    least, most = schema.get("minLength"), schema.get("maxLength")
    if most is not None and len(value) > most:
        causes.append(too_long(path, most))
    elif least is not None and len(value) < least:
        _bad(causes, path, value, f"should be at least {least} chars long")
    elif "pattern" in schema and not regexps.compiled(schema["pattern"]).search(value):
        _bad(causes, path, value, f"should match '{schema['pattern']}'")
    test = FORMATS.get(schema.get("format", ""))
    if test is not None and not test(value):
        text = f"Invalid value: {shown(value)}: {path} in body must be of type {schema['format']}: {shown(value)}"
        causes.append(Cause("FieldValueTypeInvalid", text, path))


def _number(schema: Json, value: int | float, path: str, causes: list[Cause]) -> None:
    least, most, step = schema.get("minimum"), schema.get("maximum"), schema.get("multipleOf")
    if least is not None and (value <= least if schema.get("exclusiveMinimum") else value < least):
        also = "" if schema.get("exclusiveMinimum") else " or equal to"
        _bad(causes, path, value, f"should be greater than{also} {least}")
    if most is not None and (value >= most if schema.get("exclusiveMaximum") else value > most):
        also = "" if schema.get("exclusiveMaximum") else " or equal to"
        _bad(causes, path, value, f"should be less than{also} {most}")
    if step and value % step:
        _bad(causes, path, value, f"should be a multiple of {step}")


def _combined(schema: Json, value: Any, path: str, causes: list[Cause], asked: Rules) -> None:
    for each in schema.get("allOf", ()):
        _validate(each, value, path, None, causes, asked)
    any_of, one_of = schema.get("anyOf"), schema.get("oneOf")
    if any_of is not None:
        tried: list[list[Cause]] = [validate(each, value, path) for each in any_of]
        if all(tried):
            causes.append(_none(path, "must validate at least one schema (anyOf)"))
            causes += _fewest(tried)
    if one_of is not None:
        tried = [validate(each, value, path) for each in one_of]
        good = sum(not each for each in tried)
        if good != 1:
            found = "none valid" if not good else f"{good} valid alternatives"
            causes.append(_none(path, f"must validate one and only one schema (oneOf). Found {found}"))
            causes += _fewest(tried) if not good else []
    if schema.get("not") is not None and not validate(schema["not"], value, path):
        causes.append(_none(path, "must not validate the schema (not)"))


def _fewest(tried: list[list[Cause]]) -> list[Cause]:
    return min(tried, key=lambda each: len(each)) if tried else []


def _none(path: str, why: str) -> Cause:
    return wrong("<nil>", "", f'"{path}" {why}')


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _is_address(version: int) -> Callable[[str], bool]:
    def test(text: str) -> bool:
        try:
            return ipaddress.ip_address(text).version == version
        except ValueError:
            return False

    return test


_DURATION = re.compile(
    r"[+-]?(?:0|(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|ms|s|m|h)(?:(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|ms|s|m|h))*)"
)
FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": lambda text: clock.parse(text) is not None,
    "date": lambda text: bool(re.fullmatch(r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])", text)),
    "byte": _is_base64,
    "duration": lambda text: bool(_DURATION.fullmatch(text)),
    "ipv4": _is_address(4),
    "ipv6": _is_address(6),
    "uuid": lambda text: bool(
        re.fullmatch(r"(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", text)
    ),
    "uri": lambda text: bool(re.match(r"[A-Za-z][\w+.-]*:|/", text)),
    "email": lambda text: bool(re.fullmatch(r"[^@\s]+@[^@\s]+", text)),
    "hostname": lambda text: bool(re.fullmatch(r"(?=.{1,253}$)[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*\.?", text)),
}
