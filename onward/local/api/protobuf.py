"""Reading Kubernetes' protobuf, which kubectl sends for typed objects (create configmap, drain, ...).

Only reading: every client that sends protobuf accepts JSON too. Field numbers come from the same type files as
everything else, so a message is decoded into exactly what the JSON would have been.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Iterator
from typing import Any

import msgspec

from onward.local.api.schema import Schema
from onward.local.api.status import bad_request

Json = dict[str, Any]
MAGIC = b"k8s\x00"


class _Malformed(Exception):
    pass


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise _Malformed("truncated number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise _Malformed(f"wire type {wire}")
        if at + size > len(data):
            raise _Malformed("truncated field")
        yield number, data[at : at + size]
        at += size


def _first(data: bytes, number: int) -> int | bytes | None:
    return next((value for found, value in _fields(data) if found == number), None)


def envelope(data: bytes) -> tuple[str, str, bytes]:
    """(apiVersion, kind, message) of a request body."""
    try:
        if not data.startswith(MAGIC):
            raise _Malformed("the magic number k8s\\0 is missing")
        api_version = kind = ""
        raw = b""
        for number, value in _fields(data[len(MAGIC) :]):
            if number == 1 and isinstance(value, bytes):
                api_version, kind = _text(_first(value, 1)), _text(_first(value, 2))
            elif number == 2 and isinstance(value, bytes):
                raw = value
        return api_version, kind, raw
    except (_Malformed, UnicodeDecodeError) as error:
        raise bad_request(f"the protobuf body cannot be read: {error}") from None


def read(schema: Schema, data: bytes) -> Json:
    """The object in a request body, as the JSON that means the same."""
    api_version, kind, raw = envelope(data)
    try:
        body = _message(schema, raw, 0)
    except (_Malformed, UnicodeDecodeError, OverflowError) as error:
        raise bad_request(f"the protobuf body cannot be read: {error}") from None
    return {"apiVersion": api_version, "kind": kind, **body}


def _text(value: int | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else ""


def _message(schema: Schema, data: bytes, depth: int) -> Json:
    if depth > 100:
        raise _Malformed("nested too deeply")
    wanted: dict[tuple[int, ...], str] = {field.number: name for name, field in schema.fields.items() if field.number}
    inlined = {number[:1] for number in wanted if len(number) > 1}
    result: Json = {}
    _into(schema, data, (), wanted, inlined, result, depth)
    return result


def _into(
    schema: Schema, data: bytes, prefix: tuple[int, ...], wanted: dict[tuple[int, ...], str],
    inlined: set[tuple[int, ...]], result: Json, depth: int,
) -> None:  # fmt: skip
    for number, value in _fields(data):
        path = (*prefix, number)
        name = wanted.get(path)
        if name is None:
            nested = any(len(key) > len(path) and key[: len(path)] == path for key in wanted)
            if nested and isinstance(value, bytes):
                _into(schema, value, path, wanted, inlined, result, depth)
            continue
        field = schema.fields[name]
        kind = field.schema.kind
        if kind == "list":
            result.setdefault(name, []).append(_value(field.schema.items or Schema("any"), value, depth))
        elif kind == "map" and isinstance(value, bytes):
            inner = _first(value, 2)
            items = field.schema.items or Schema("any")
            result.setdefault(name, {})[_text(_first(value, 1))] = _value(
                items, inner if inner is not None else b"", depth
            )
        else:
            result[name] = _value(field.schema, value, depth)


def _value(schema: Schema, value: int | bytes, depth: int) -> Any:
    kind = schema.kind
    if kind == "boolean":
        return bool(value) if isinstance(value, int) else False
    if kind in ("integer", "number"):
        number = value if isinstance(value, int) else 0
        return number - (1 << 64) if number >= 1 << 63 else number
    data = value if isinstance(value, bytes) else b""
    if kind == "object":
        return _message(schema, data, depth + 1)
    if kind == "list":  # a named list type (ExtraValue) is a message with the items in field 1
        return [_value(schema.items or Schema("any"), each, depth) for number, each in _fields(data) if number == 1]
    if kind == "time":
        return _time(data)
    if kind == "quantity":
        return _text(_first(data, 1)) or "0"
    if kind == "bytes":
        return base64.b64encode(data).decode()
    if kind == "intstr":
        if _first(data, 1) == 1:
            return _text(_first(data, 3))
        return _value(Schema("integer"), _first(data, 2) or 0, depth)
    if kind == "any":
        raw = _first(data, 1)
        try:
            return msgspec.json.decode(raw) if isinstance(raw, bytes) and raw else None
        except msgspec.DecodeError as error:
            raise _Malformed(str(error)) from None
    return data.decode()


def _time(data: bytes) -> str | None:
    seconds, nanos = _first(data, 1), _first(data, 2)
    if not seconds and not nanos:
        return None
    whole = seconds if isinstance(seconds, int) else 0
    moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=whole)
    fraction = f".{nanos // 1000:06d}" if isinstance(nanos, int) and nanos else ""
    return moment.strftime("%Y-%m-%dT%H:%M:%S") + fraction + "Z"
