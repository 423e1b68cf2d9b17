"""The custom resource definitions that onward brings, as YAML beside this file: `kubectl apply` takes them too."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

FOLDER = "crds"


def crds() -> list[dict[str, Any]]:
    """All of them, by file name."""
    import yaml

    found: list[dict[str, Any]] = []
    for entry in sorted(files("onward.api").joinpath(FOLDER).iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".yaml"):
            found += [doc for doc in yaml.safe_load_all(entry.read_text(encoding="utf-8")) if doc]
    return found
