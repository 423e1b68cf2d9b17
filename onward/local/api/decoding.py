"""From bytes to an object of a known kind: bounded, strict about types, exact about unknown fields.

Like the real server: a value of the wrong type is refused with its field, a null means absent, and a field nobody
knows is dropped, with a warning or (fieldValidation=Strict) an error.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import yaml

from onward.local.api.schema import Schema
from onward.local.api.status import ApiError, bad_request

Json = dict[str, Any]
MAX_BODY = 3 * 1024 * 1024
MAX_DEPTH = 200
MAX_NODES = 200_000

QUANTITY = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+|[numkMGTPE]|[KMGTPE]i)?")


def parse(raw: bytes, content_type: str) -> Any:
    """JSON or YAML, whichever the content type says; anything malformed is 400 with where."""
    if "yaml" in content_type:
        return _parse_yaml(raw)
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"couldn't get version/kind; json parse error: {error}") from None
    except RecursionError:
        raise bad_request("couldn't get version/kind; json parse error: nested too deeply") from None
    return value


def _parse_yaml(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)  # kubectl sends JSON under YAML's name
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        depth = 0
        for count, event in enumerate(yaml.parse(raw, Loader=yaml.CSafeLoader)):
            if isinstance(event, yaml.AliasEvent):
                raise bad_request("error parsing YAML: aliases are not accepted; write the value out")
            if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                depth += 1
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                depth -= 1
            if depth > MAX_DEPTH or count > MAX_NODES:
                raise bad_request("error parsing YAML: nested too deeply or too many values")
        return msgspec.json.decode(msgspec.json.encode(yaml.load(raw, Loader=yaml.CSafeLoader)))
    except yaml.YAMLError as error:
        raise bad_request(f"error converting YAML to JSON: {str(error)[:500]}") from None
    except (TypeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise bad_request(f"error converting YAML to JSON: {str(error)[:500]}") from None


class TypeMismatch(Exception):
    """A value that cannot be decoded as its field."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


_JSON_NAMES = {dict: "object", list: "array", str: "string", bool: "bool", int: "number", float: "number"}
_GO = {"string": "string", "boolean": "bool", "number": "float64", "bytes": "[]uint8", "integer": "int64"}


def conform(schema: Schema, value: Any, lenient: bool = False) -> tuple[Any, list[str]]:
    """The value with nulls and unknown fields gone, and the paths of the unknown ones.

    `lenient` is for custom kinds: a wrong type is left for validation to report, with all other problems. What they
    take from the built-in kinds, their metadata, is as strict as anywhere.
    """
    unknown: list[str] = []
    return _conform(schema, value, "", "", unknown, 0, lenient), unknown


def _conform(
    schema: Schema, value: Any, path: str, struct: str, unknown: list[str], depth: int, lenient: bool = False
) -> Any:
    lenient = lenient and not schema.struct
    try:
        return _strictly(schema, value, path, struct, unknown, depth, lenient)
    except TypeMismatch as error:
        if lenient and depth and error.path == path:
            return value
        raise


def _strictly(schema: Schema, value: Any, path: str, struct: str, unknown: list[str], depth: int, lenient: bool) -> Any:
    if depth > MAX_DEPTH:
        raise TypeMismatch(f"{path[:100]}: nested too deeply", path)
    kind = schema.kind
    if kind == "any":
        return value
    if kind == "object":
        if not isinstance(value, dict):
            raise _mismatch(value, path, struct, "v1." + schema.name)
        result: Json = {}
        for key, each in value.items():
            field = schema.fields.get(key)
            where = f"{path}.{key}" if path else key
            if field is None:
                if schema.preserve:
                    result[key] = each
                else:
                    unknown.append(where[:200])
                continue
            if each is None:
                if field.schema.nullable or (lenient and not field.schema.struct):
                    result[key] = None
                continue
            child = _conform(field.schema, each, where, schema.name, unknown, depth + 1, lenient)
            if field.number and not field.pointer and not field.required and _is_zero(field.schema.kind, child):
                continue
            result[key] = child
        return result
    if kind == "map":
        if not isinstance(value, dict):
            raise _mismatch(value, path, struct, f"map[string]{_GO.get(_items(schema).kind, 'interface {}')}")
        items = _items(schema)
        return {
            key: _conform(items, each, f"{path}[{key}]", struct, unknown, depth + 1, lenient)
            for key, each in value.items()
            if each is not None or items.kind == "any" or items.nullable
        }
    if kind == "list":
        if not isinstance(value, list):
            raise _mismatch(value, path, struct, f"[]{_GO.get(_items(schema).kind, 'v1.' + _items(schema).name)}")
        items = _items(schema)
        return [
            _conform(items, each, f"{path}[{i}]", struct, unknown, depth + 1, lenient) for i, each in enumerate(value)
        ]
    return _scalar(schema, value, path, struct)


def _is_zero(kind: str, value: Any) -> bool:
    """What the server's own structs leave out again when they are written (structs themselves are not left out)."""
    return kind not in ("object", "any", "intstr", "quantity") and value in ("", 0, False, [], {})


def _items(schema: Schema) -> Schema:
    return schema.items or Schema("any")


def _scalar(schema: Schema, value: Any, path: str, struct: str) -> Any:
    kind = schema.kind
    if kind in ("string", "time", "bytes"):
        if not isinstance(value, str):
            raise _mismatch(value, path, struct, _GO.get(kind, "string"))
    elif kind == "boolean":
        if not isinstance(value, bool):
            raise _mismatch(value, path, struct, "bool")
    elif kind == "integer":
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise _mismatch(value, path, struct, schema.format or "int64")
        bits = 31 if schema.format == "int32" else 63
        if not -(2**bits) <= value < 2**bits:
            raise _mismatch(value, path, struct, schema.format or "int64", f"number {value}")
    elif kind == "number":
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _mismatch(value, path, struct, "float64")
    elif kind == "intstr":
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise _mismatch(value, path, struct, "intstr.IntOrString")
    elif kind == "quantity":
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = f"{value:g}" if isinstance(value, float) else str(value)
        if not isinstance(value, str) or not QUANTITY.fullmatch(value):
            pattern = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
            raise TypeMismatch(f"quantities must match the regular expression '{pattern}' (at {path})", path)
    return value


def _mismatch(value: Any, path: str, struct: str, wanted: str, found: str = "") -> TypeMismatch:
    found = found or _JSON_NAMES.get(type(value), "null")
    where = re.sub(r"\[[^\]]*\]", "", path)
    if not where:
        return TypeMismatch(f"json: cannot unmarshal {found} into Go value of type {wanted}", path)
    text = f"json: cannot unmarshal {found} into Go struct field {struct}.{where} of type {wanted}"
    return TypeMismatch(text, path)


def handled_as(kind: str, version: str, why: str) -> ApiError:
    return bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {why}')
