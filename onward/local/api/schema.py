"""One description of types for everything: decoding, pruning, strategic patches, server-side apply, OpenAPI.

Built-in kinds come from the files in `types/` (field names, types, merge keys: the facts of the Kubernetes API), custom
kinds from the CRD's own schema. After loading, nobody needs to know which it was.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

SCALARS = {
    "string": "string",
    "int32": "integer",
    "int64": "integer",
    "number": "number",
    "bool": "boolean",
    "Time": "time",
    "MicroTime": "time",
    "Quantity": "quantity",
    "IntOrString": "intstr",
    "bytes": "bytes",
    "Any": "any",
}


@dataclass(eq=False)
class Schema:
    """A type. `kind` is one of object, map, list, any, or a scalar of SCALARS."""

    kind: str
    name: str = ""
    fields: dict[str, Field] = field(default_factory=dict)
    items: Schema | None = None
    format: str = ""
    enum: tuple[str, ...] = ()
    list_type: str = "atomic"
    keys: tuple[str, ...] = ()
    merge_key: str = ""
    patch: frozenset[str] = frozenset()
    preserve: bool = False
    nullable: bool = False
    atomic: bool = False
    """Owned as a whole by whoever writes any of it."""
    typed: bool = False
    """A struct of the server's own, see `zeros`."""
    struct: str = ""
    """`core.PodSpec` for the built-in ones: they refer to each other by name in OpenAPI."""

    def required(self) -> list[str]:
        return [name for name, each in self.fields.items() if each.required]


@dataclass
class Field:
    """A field of an object: its type, and what is said about it there."""

    schema: Schema
    required: bool = False
    atomic: bool = False
    default: Any = None
    written: bool = False
    """There is always something to read, if only a zero."""
    pointer: bool = False
    """An explicit zero is kept; for others a zero is the same as nothing, as in the server's own structs."""
    number: tuple[int, ...] = ()
    """Where protobuf keeps it: field numbers, from the outside in (inlined structs are messages of their own there)."""


TYPES = Path(__file__).parent / "types"


def _flags(words: list[str]) -> dict[str, str]:
    return {word.partition("=")[0]: word.partition("=")[2] for word in words}


class Types:
    """Every built-in struct by its name, `core.PodSpec`."""

    def __init__(self, folder: Path = TYPES) -> None:
        self.structs: dict[str, Schema] = {}
        lines: dict[str, str] = {}
        for file in sorted(folder.glob("*.types")):
            text = re.sub(r"\n +", " ", file.read_text(encoding="utf-8"))
            for line in filter(None, text.split("\n")):
                name, _, body = line.partition(":")
                atomic, name = name.startswith("atomic "), name.removeprefix("atomic ")
                full = f"{file.stem}.{name}"
                lines[full] = body
                self.structs[full] = Schema("object", name, struct=full, atomic=atomic, typed=True)
        for full, body in lines.items():
            for part in filter(None, (part.strip() for part in body.split(";"))):
                named, type_, *words = part.split(" ")
                name, _, numbers = named.partition("@")
                flags = _flags(words)
                schema = self._parse(full.split(".")[0], type_)
                self._list_flags(schema, flags)
                self.structs[full].fields[name.rstrip("!*+")] = Field(
                    schema,
                    required="!" in name,
                    atomic="atomic" in flags,
                    default=flags.get("default"),
                    written="!" in name or "+" in name,
                    pointer="*" in name,
                    number=tuple(int(each) for each in numbers.split(".") if each),
                )

    @staticmethod
    def _list_flags(schema: Schema, flags: dict[str, str]) -> None:
        if "patch" in flags:
            how, _, key = flags["patch"].partition(":")
            schema.patch, schema.merge_key = frozenset(how.split("+")), key
        if "list" in flags:
            schema.list_type, _, keys = flags["list"].partition(":")
            schema.keys = tuple(filter(None, keys.split("+")))

    def _parse(self, group: str, text: str) -> Schema:
        if text.startswith("[]"):
            return Schema("list", items=self._parse(group, text[2:]))
        if text.startswith("{}"):
            return Schema("map", items=self._parse(group, text[2:]))
        if text.startswith("enum("):
            return Schema("string", enum=tuple(text[5:-1].split("|")))
        if text == "Any":
            return Schema("any", atomic=True)
        if text in SCALARS:
            return Schema(SCALARS[text], format=text if text.startswith(("int", "Micro")) else "")
        return self.structs[text if "." in text else f"{group}.{text}"]

    def kind(self, struct: str) -> Schema:
        """The schema of a top-level kind: the struct plus apiVersion and kind."""
        base = self.structs[struct]
        fields = {"apiVersion": Field(Schema("string")), "kind": Field(Schema("string")), **base.fields}
        return Schema("object", base.name, fields, typed=True)


@lru_cache(maxsize=1)
def builtin_types() -> Types:
    return Types()


def from_json_schema(raw: dict[str, Any], name: str = "") -> Schema:
    """A CRD's structural schema, as far as decoding and merging need it (`structural.py` does the validation)."""
    if raw.get("x-kubernetes-int-or-string"):
        return Schema("intstr", name)
    preserve = bool(raw.get("x-kubernetes-preserve-unknown-fields"))
    nullable = bool(raw.get("nullable"))
    kind = raw.get("type")
    if kind == "array":
        items = raw.get("items")
        return Schema(
            "list",
            name,
            items=from_json_schema(items if isinstance(items, dict) else {}),
            list_type=raw.get("x-kubernetes-list-type", "atomic"),
            keys=tuple(raw.get("x-kubernetes-list-map-keys", ())),
            nullable=nullable,
        )
    extra = raw.get("additionalProperties")
    if kind == "object" and isinstance(extra, dict):
        return Schema("map", name, items=from_json_schema(extra), nullable=nullable)
    if kind == "object" and extra is True and not raw.get("properties"):
        return Schema("map", name, items=Schema("any"), nullable=nullable)
    if kind == "object":
        fields: dict[str, Field] = {}
        if raw.get("x-kubernetes-embedded-resource"):
            fields = dict(builtin_types().kind("core.Pod").fields.items())
            fields = {key: fields[key] for key in ("apiVersion", "kind", "metadata")}
        needed = set(raw.get("required", ()))
        for key, value in raw.get("properties", {}).items():
            if key in fields:
                continue
            child = from_json_schema(value, key)
            atomic = value.get("x-kubernetes-map-type") == "atomic"
            fields[key] = Field(child, key in needed, atomic, default=value.get("default"))
        return Schema("object", name, fields, preserve=preserve, nullable=nullable)
    if kind in ("string", "integer", "number", "boolean"):
        return Schema(kind, name, format=str(raw.get("format", "")), nullable=nullable)
    return Schema("any", name, preserve=preserve, nullable=True)
