"""Fields that a rule of a CRD names: they must be in the schema, and are spelled so that CEL can read them.

Only what hangs on `self` or `oldSelf` by names and indexes is looked at; a variable of `all` or `map` is not followed.
"""

from __future__ import annotations

import re
from typing import Any

Json = dict[str, Any]
KEYWORDS = {
    "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let",
    "loop", "package", "namespace", "return", "var", "void", "while",
}  # fmt: skip
_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_ROOT = re.compile(r"(?<![\w.])(?:self|oldSelf)\b")
_STEP = re.compile(r"\s*(?:(\.)\s*([A-Za-z_]\w*)(?!\w|\s*\()|\[[^\[\]]*\])")
_HAS = re.compile(r"\bhas\s*(\()\s*$")
_OF_AN_OBJECT = {
    "apiVersion": {"type": "string"},
    "kind": {"type": "string"},
    "metadata": {"type": "object", "properties": {"name": {"type": "string"}, "generateName": {"type": "string"}}},
}


def escaped(name: str) -> str:
    """How a rule spells a field."""
    if name in KEYWORDS:
        return f"__{name}__"
    for part, word in (("__", "underscores"), (".", "dot"), ("-", "dash"), ("/", "slash")):
        name = name.replace(part, f"__{word}__")
    return name


def readable(schema: Any, value: Any) -> Any:
    """A value, its fields named as rules name them. Keys of maps stay."""
    if not isinstance(schema, dict):
        return value
    if isinstance(value, list):
        return [readable(schema.get("items"), each) for each in value]
    if not isinstance(value, dict):
        return value
    known = schema.get("properties")
    if not known:
        return {key: readable(schema.get("additionalProperties"), each) for key, each in value.items()}
    return {escaped(key) if key in known else key: readable(known.get(key), each) for key, each in value.items()}


def unknown(text: str, schema: Json, root: bool) -> str:
    """What a real server says of fields that do not exist; empty when all do."""
    bare = _TEXT.sub(lambda found: " " * len(found.group()), text)
    found = {_first(bare, begin, schema, root) for begin in _ROOT.finditer(bare)}
    return "\n".join(_told(text, *each) for each in sorted(each for each in found if each))


def _first(text: str, begin: re.Match[str], schema: Any, root: bool) -> tuple[int, str] | None:
    """Where the first name stands that is no field, on the way from `self`."""
    at = begin.end()
    while isinstance(schema, dict) and (step := _STEP.match(text, at)):
        if step.group(1) is None:
            schema = schema.get("items") or schema.get("additionalProperties")
        elif schema.get("type") != "object":
            return None  # a scalar, or whatever it may be
        elif isinstance(schema.get("additionalProperties"), dict):
            schema = schema["additionalProperties"]
        else:
            fields = {escaped(key): child for key, child in (schema.get("properties") or {}).items()}
            if root or schema.get("x-kubernetes-embedded-resource"):
                fields |= _OF_AN_OBJECT
            if step.group(2) not in fields:
                asked = None if _STEP.match(text, step.end()) else _HAS.search(text[: begin.start()])
                return (asked.start(1) if asked else step.start(1)), step.group(2)
            schema = fields[step.group(2)]
        root, at = False, step.end()
    return None


def _told(text: str, at: int, name: str) -> str:
    line, column = text.count("\n", 0, at), at - (text.rfind("\n", 0, at) + 1)
    where = f"ERROR: <input>:{line + 1}:{column + 1}: undefined field '{name}'"
    return f"{where}\n | {text.splitlines()[line]}\n | {'.' * column}^"
