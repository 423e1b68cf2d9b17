"""From bytes to an object of a known kind: bounded, strict about types, exact about unknown fields.

Like the real server: a value of the wrong type is refused with its field, a null means absent, and a field nobody
knows is dropped, with a warning or (fieldValidation=Strict) an error.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import yaml

from onward.local.api import scalars
from onward.local.api.registry import Resource
from onward.local.api.schema import Schema
from onward.local.api.status import ApiError, bad_request

Json = dict[str, Any]
MAX_BODY = 3 * 1024 * 1024
MAX_DEPTH = 200
MAX_NODES = 200_000


class Doubled(dict[str, Any]):
    """An object in which some keys came more than once: the last value counts, but maps and structs are merged."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__()
        self.twice: list[str] = []
        self.complaints: list[str] = []
        """Of a whole document in YAML, where lines are what is known."""
        for key, value in pairs:
            if key in self:
                self.twice.append(key)
                value = _both(self[key], value)
            self[key] = value


def _both(first: Any, second: Any) -> Any:
    """What is left of two values for one key."""
    if not (isinstance(first, dict) and isinstance(second, dict)):
        return second
    found = Doubled([])
    found.twice = [*getattr(first, "twice", ()), *getattr(second, "twice", ())]
    found.update({**first, **second})
    return found


def _pairs(pairs: list[tuple[str, Any]]) -> Json:
    found = dict(pairs)
    return found if len(found) == len(pairs) else Doubled(pairs)


_decode = json.JSONDecoder(object_pairs_hook=_pairs).decode
_SYNTAX = {
    "Expecting property name": "looking for beginning of object key string",
    "Illegal trailing comma": "looking for beginning of object key string",
    "Expecting value": "looking for beginning of value",
    "Expecting ':' delimiter": "after object key",
    "Extra data": "after top-level value",
    "Invalid control character": "in string literal",
    "Invalid \\escape": "in string escape code",
}


class Malformed(Exception):
    """Not JSON (or YAML) at all; the text is what Go says about it."""


_ESCAPES = re.compile(r"\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w|(\\u[dD][89a-fA-F]\w\w)|\\.", re.DOTALL)


def _whole_characters(text: str) -> str:
    """Halves of a pair that stand alone are no characters: as in Go, each becomes the replacement character."""
    return _ESCAPES.sub(lambda found: "\\ufffd" if found.group(1) else found.group(), text)


def parse_json(raw: bytes) -> Any:
    """JSON, with the keys that came twice marked."""
    try:
        text = raw.decode()
        return _decode(_whole_characters(text) if "\\u" in text else text)
    except UnicodeDecodeError:
        raise Malformed("invalid UTF-8 in the body") from None
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
            raise Malformed("unexpected end of JSON input") from None
        where = next((each for start, each in _SYNTAX.items() if error.msg.startswith(start)), "")
        if error.msg.startswith("Expecting ',' delimiter"):
            where = "after object key:value pair" if _in_object(text[: error.pos]) else "after array element"
        raise Malformed(f"invalid character {text[error.pos]!r} {where}".rstrip()) from None
    except (RecursionError, ValueError):
        raise Malformed("exceeded max depth") from None


def _in_object(before: str) -> bool:
    """Roughly: is the innermost open bracket a brace?"""
    plain = re.sub(r'"(?:[^"\\]|\\.)*"', "", before)
    depth = 0
    for char in reversed(plain):
        depth += (char in "}]") - (char in "{[")
        if depth < 0:
            return char == "{"
    return True


def parse(raw: bytes, content_type: str) -> Any:
    """JSON or YAML, whichever the content type says. Raises Malformed."""
    return _parse_yaml(raw) if "yaml" in content_type else parse_json(raw)


def _parse_yaml(raw: bytes) -> Any:
    try:
        return parse_json(raw)  # kubectl sends JSON under YAML's name
    except Malformed:
        pass
    try:
        depth = 0
        for count, event in enumerate(yaml.parse(raw, Loader=yaml.CSafeLoader)):
            if isinstance(event, yaml.AliasEvent):
                raise Malformed("error converting YAML to JSON: aliases are not accepted; write the value out")
            if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                depth += 1
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                depth -= 1
            if depth > MAX_DEPTH or count > MAX_NODES:
                raise Malformed("error converting YAML to JSON: nested too deeply or too many values")
        loader = _YamlLoader(raw)
        try:
            value = msgspec.json.decode(msgspec.json.encode(loader.get_single_data()))
        finally:
            loader.dispose()
        if loader.lines and isinstance(value, dict):
            value = Doubled(list(value.items()))
            value.complaints = ["yaml: unmarshal errors:\n" + "\n".join(loader.lines)]
        return value
    except yaml.YAMLError as error:
        text = getattr(error, "problem", "") or str(error)
        raise Malformed(f"error converting YAML to JSON: yaml: {text[:500]}") from None
    except (TypeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise Malformed(f"error converting YAML to JSON: {str(error)[:500]}") from None


class _YamlLoader(yaml.CSafeLoader):
    """Notes the keys that come twice in one mapping."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        self.lines: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    self.lines.append(f'  line {key.start_mark.line + 1}: key "{key.value}" already set in map')
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def summary(raw: bytes, most: int = 30) -> str:
    """A body that could not be read, as it is shown in the complaint about it."""
    if not raw:
        return "<empty>"
    text = raw[:most].decode("utf-8", "replace") if raw.startswith(b"{") else raw[:most].hex()
    return text + (" ..." if len(raw) > most else "")


HEAD = (
    'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; '
    'Kind string "json:\\"kind,omitempty\\"" }'
)  # fmt: skip


def object_of(raw: bytes, content_type: str, kind: str = "") -> Json:
    """A body that must be an object; `kind` is what it should be, for the complaint."""
    try:
        value = parse(raw, content_type)
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        raise Malformed(f"json: cannot unmarshal {json_name(value)} into Go value of type {HEAD}")
    except Malformed as error:
        why = str(error)
        if not why.startswith("error converting"):
            why = f"couldn't get version/kind; json parse error: {why}"
        if kind:
            why = f"the object provided is unrecognized (must be of type {kind}): {why} ({summary(raw)})"
        raise bad_request(why) from None


class TypeMismatch(Exception):
    """A value that cannot be decoded as its field."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


def json_name(value: Any) -> str:
    """What JSON calls a value."""
    return next((name for type_, name in _JSON_NAMES.items() if isinstance(value, type_)), "null")


_JSON_NAMES = {dict: "object", list: "array", str: "string", bool: "bool", int: "number", float: "number"}
_GO = {"string": "string", "boolean": "bool", "number": "float64", "bytes": "[]uint8", "integer": "int64"}


def conform(schema: Schema, value: Any, lenient: bool = False) -> tuple[Any, list[str]]:
    """The value with nulls and unknown fields gone, and complaints about unknown and repeated ones.

    `lenient` is for custom kinds: a wrong type is left for validation to report, with all other problems. What they
    take from the built-in kinds, their metadata, is as strict as anywhere.
    """
    unknown = list(value.complaints) if isinstance(value, Doubled) else []
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
                    unknown.append(f'unknown field "{_shown(where)}"')
                _twice(value, key, where, unknown)
                continue
            if each is None:
                if field.schema.nullable:
                    result[key] = None
                continue
            child = _conform(field.schema, each, where, schema.name, unknown, depth + 1, lenient)
            _twice(value, key, where, unknown)
            if field.number and not field.pointer and not field.required and _is_zero(field.schema.kind, child):
                continue
            result[key] = child
        return result
    if kind == "map":
        if not isinstance(value, dict):
            raise _mismatch(value, path, struct, f"map[string]{_GO.get(_items(schema).kind, 'interface {}')}")
        items = _items(schema)
        found: Json = {}
        for key, each in value.items():
            if each is None and not (items.kind == "any" or items.nullable):
                if not lenient and items.kind == "string":
                    found[key] = ""
                continue
            found[key] = _conform(items, each, f"{path}\0{key}", struct, unknown, depth + 1, lenient)
            _twice(value, key, f"{path}\0{key}", unknown)
        return found
    if kind == "list":
        if not isinstance(value, list):
            raise _mismatch(value, path, struct, f"[]{_GO.get(_items(schema).kind, 'v1.' + _items(schema).name)}")
        items = _items(schema)
        return [
            _conform(items, each, f"{path}[{i}]", struct, unknown, depth + 1, lenient) for i, each in enumerate(value)
        ]
    return _scalar(schema, value, path, struct)


def _twice(value: Json, key: str, where: str, complaints: list[str]) -> None:
    if isinstance(value, Doubled) and key in value.twice:
        complaints.append(f'duplicate field "{_shown(where)}"')


def _shown(path: str) -> str:
    return path.replace("\0", ".")[:200]


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
        try:
            if kind == "time":
                return scalars.moment(value, schema.format == "MicroTime")
            return scalars.encoded(value) if kind == "bytes" else value
        except ValueError as error:
            raise TypeMismatch(str(error), path) from None
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
        try:
            return scalars.quantity(value)
        except ValueError as error:
            raise TypeMismatch(str(error), path) from None
    return value


def _mismatch(value: Any, path: str, struct: str, wanted: str, found: str = "") -> TypeMismatch:
    found = found or (f"number {value}" if isinstance(value, float) else json_name(value))
    where = re.sub(r"\[\d+\]|\0.*", "", path)
    if not where:
        return TypeMismatch(f"json: cannot unmarshal {found} into Go value of type {wanted}", path)
    text = f"json: cannot unmarshal {found} into Go struct field {struct}.{where} of type {wanted}"
    return TypeMismatch(text, path)


def handled_as(resource: Resource, named: str, why: str) -> ApiError:
    """A body that calls itself `named` and cannot be read as what it should be."""
    return bad_request(f'{named[:100]} in version "{resource.version}" cannot be handled as a {resource.kind}: {why}')
