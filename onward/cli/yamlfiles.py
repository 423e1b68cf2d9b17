"""Files that people write: every document of them, with its nodes, whatever is in it.

A file is data from anywhere: aliases that would fill the memory and nesting without end are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from onward.cli.paths import meant

SUFFIXES = (".yaml", ".yml", ".json")
LARGEST = 200_000  # values in one document
UNREADABLE = (OSError, UnicodeDecodeError)
MALFORMED = (yaml.YAMLError, ValueError, RecursionError)  # ValueError: a date that is none


class _Loader(yaml.SafeLoader):
    """As Kubernetes reads YAML: what looks like a date is a text."""


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in rules if tag != "tag:yaml.org,2002:timestamp"]
    for letter, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def paths(file: str) -> list[str]:
    """The file, or those of a directory."""
    if Path(file).is_dir():
        return [str(p) for p in sorted(Path(file).iterdir()) if p.suffix in SUFFIXES]
    return [file]


def documents(text: str) -> Iterator[tuple[yaml.Node, Any]]:
    """Each with its node. Raises what is in MALFORMED."""
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is not None and _size(node, {}) > LARGEST:
                raise yaml.YAMLError(f"too large: with its aliases written out it has more than {LARGEST} values")
            obj = loader.construct_document(node)
            if node is not None and obj is not None:
                yield node, obj
    finally:
        loader.dispose()


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values there are when every alias is written out."""
    if id(node) not in known:
        known[id(node)] = LARGEST  # should it contain itself
        below = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = [part for each in below for part in (each if isinstance(each, tuple) else (each,))]
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]


def in_words(e: Exception) -> str:
    if isinstance(e, RecursionError):
        return "nested too deeply"
    if isinstance(e, FileNotFoundError):
        return f"there is no such file{meant(str(e.filename))}"
    if isinstance(e, OSError):
        return f"cannot be read: {e.strerror or e}"
    if isinstance(e, UnicodeDecodeError):
        return f"cannot be read: it is not a text in UTF-8 ({e.reason} at byte {e.start})"
    return str(e)
