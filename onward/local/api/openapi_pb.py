"""OpenAPI v2 in protobuf, which is the only form in which kubectl asks for it.

It asks when version 3 does not know a kind, to find out whether the server checks fields itself; so this holds the
PATCH operations with their query parameters and no models. Everything else is in version 3, or in version 2 as JSON.
"""

from __future__ import annotations

from onward.local.api.registry import Registry, Resource

TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "force")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _part(number: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _parameter(name: str) -> bytes:
    query = _part(2, "query") + _part(4, name) + _part(6, "string")
    return _part(8, _part(1, _part(2, _part(3, query))))


def _patch(resource: Resource) -> bytes:
    group = resource.group or '""'
    kind = f"group: {group}\nkind: {resource.kind}\nversion: {resource.version}\n"
    extension = _part(13, _part(1, "x-kubernetes-group-version-kind") + _part(2, _part(2, kind)))
    return _part(8, b"".join(_parameter(name) for name in PARAMETERS) + extension)


def document(registry: Registry) -> bytes:
    """The whole document."""
    paths = b""
    for each in registry.all():
        if "patch" in each.verbs:
            base = f"/apis/{each.group}/{each.version}" if each.group else f"/api/{each.version}"
            scope = "/namespaces/{namespace}" if each.namespaced else ""
            paths += _part(2, _part(1, f"{base}{scope}/{each.plural}/{{name}}") + _part(2, _patch(each)))
    return _part(1, "2.0") + _part(2, _part(1, "onward") + _part(2, "v1")) + _part(8, paths)
