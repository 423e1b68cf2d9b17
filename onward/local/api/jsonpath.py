"""The JSONPath that printer columns use: fields, quoted fields, indexes (negative too), slices, `*`, simple filters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

_STEP = re.compile(
    r"""\.(?P<name>[\w\-$/]+(?:\\\.[\w\-$/]+)*)"""
    r"""|\.(?P<star>\*)"""
    r"""|\[(?P<index>-?\d+)\]"""
    r"""|\[(?P<all>\*)\]"""
    r"""|\[(?P<from>-?\d*):(?P<to>-?\d*)\]"""
    r"""|\[(?P<quote>['"])(?P<key>[^'"]*)(?P=quote)\]"""
    r"""|\[\?\(\s*@(?P<field>[\w.\-]*)\s*(?P<op>==|!=)\s*(?P<value>"[^"]*"|'[^']*'|[^)\s]+)\s*\)\]"""
)


class BadPath(ValueError):
    """Not a path of the supported kind."""


@dataclass(frozen=True)
class Path:
    """A parsed path."""

    steps: tuple[re.Match[str], ...]

    def all(self, value: Any) -> list[Any]:
        found = [value]
        for step in self.steps:
            found = [child for each in found for child in _advance(each, step)]
        return found

    def first(self, value: Any) -> Any:
        """The value a column shows: the first match; several matches of a `*` or a filter are joined."""
        found = self.all(value)
        if not found:
            return None
        several = any(step["star"] or step["all"] or step["from"] is not None for step in self.steps)
        return ",".join(each if isinstance(each, str) else show(each) for each in found) if several else found[0]


def show(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def parse(text: str) -> Path:
    """Accepts `.a.b`, `$.a`, `{.a}`; raises BadPath for what this does not support."""
    text = text.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    text = text.removeprefix("$")
    steps: list[re.Match[str]] = []
    at = 0
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            raise BadPath(f"cannot read the JSONPath {text!r} at {text[at:]!r}")
        steps.append(match)
        at = match.end()
    return Path(tuple(steps))


def _advance(value: Any, step: re.Match[str]) -> list[Any]:
    name = step["name"] or step["key"]
    if name is not None:
        name = name.replace("\\.", ".") if step["name"] else name
        return [value[name]] if isinstance(value, dict) and value.get(name) is not None else []
    if step["star"] or step["all"]:
        return list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, list) else []
    if not isinstance(value, list):
        return []
    if step["index"] is not None:
        index = int(step["index"])
        return [value[index]] if -len(value) <= index < len(value) else []
    if step["from"] is not None:
        start = int(step["from"]) if step["from"] else None
        end = int(step["to"]) if step["to"] else None
        return value[start:end]
    return [each for each in value if _passes(each, step)]


def _passes(value: Any, step: re.Match[str]) -> bool:
    for part in filter(None, step["field"].split(".")):
        value = value.get(part) if isinstance(value, dict) else None
    wanted = step["value"].strip("\"'")
    found = "" if value is None else value if isinstance(value, str) else show(value)
    return (found == wanted) == (step["op"] == "==")
