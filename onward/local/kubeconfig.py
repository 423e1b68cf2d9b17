"""Adding the cluster to the user's own kubeconfig, without touching anything else in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from onward.errors import UsageError

NAME = "onward"


def target() -> Path:
    given = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    return Path(given) if given else Path.home() / ".kube" / "config"


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text()) if path.exists() else {}
    except (OSError, yaml.YAMLError) as e:
        raise UsageError(f"{path} cannot be read ({e}); it was left as it is") from e
    return data if isinstance(data, dict) else {}


def merge(source: Path) -> str:
    """Returns what was done, in words."""
    path, ours = target(), _read(source)
    data = _read(path)
    data.setdefault("apiVersion", "v1")
    data.setdefault("kind", "Config")
    for section, inner in (("clusters", "cluster"), ("users", "user")):
        entry = {"name": NAME, inner: ours[section][0][inner]}
        data[section] = [e for e in data.get(section) or [] if e.get("name") != NAME] + [entry]
    context = {"name": NAME, "context": {"cluster": NAME, "user": NAME}}
    data["contexts"] = [e for e in data.get("contexts") or [] if e.get("name") != NAME] + [context]
    data["current-context"] = NAME
    _write(path, data)
    return f"Context {NAME!r} is now the current one in {path}."


def unmerge(server: str) -> None:
    """Take our entries out again, if they are still those of this cluster."""
    path = target()
    data = _read(path) if path.exists() else {}
    mine = [c for c in data.get("clusters") or [] if c.get("name") == NAME]
    if not mine or mine[0].get("cluster", {}).get("server") != server:
        return
    for section in ("clusters", "users", "contexts"):
        data[section] = [e for e in data.get(section) or [] if e.get("name") != NAME]
    if data.get("current-context") == NAME:
        data["current-context"] = data["contexts"][0]["name"] if data["contexts"] else ""
    _write(path, data)


def _write(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.onward")
    new.touch(0o600)
    new.write_text(yaml.safe_dump(data, sort_keys=False))
    new.rename(path)
