"""Whether a module is there, by its name; nothing is imported to find out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec


def first_missing(name: str, path: Sequence[str]) -> str:
    """The part of a dotted name that is not there, with what leads to it: `a.b` of `a.b.c`. Empty: all are."""
    missing, _ = _walk(name, path)
    return missing


def needs_main(name: str, path: Sequence[str]) -> bool:
    """A package without the `__main__` that `python -m` would run."""
    missing, below = _walk(name, path)
    return not missing and below is not None and bool(first_missing(f"{name}.__main__", path))


def _walk(name: str, path: Sequence[str]) -> tuple[str, Sequence[str] | None]:
    """What is missing, and where to look for what is below the whole name; None: it is no package."""
    parts = name.split(".")
    below: Sequence[str] | None = path
    for n in range(1, len(parts) + 1):
        full = ".".join(parts[:n])
        spec = _find(full, below) if below is not None else None
        if spec is None and full not in sys.modules:
            return full, None
        below = spec.submodule_search_locations if spec is not None else None
    return "", below


def _find(name: str, path: Sequence[str]) -> ModuleSpec | None:
    found = (finder.find_spec(name, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    return next((spec for spec in found if spec is not None), None)
