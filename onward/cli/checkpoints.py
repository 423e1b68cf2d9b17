"""`onward checkpoints DIR`: what is there, and whether it could be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onward.checkpoints import disk
from onward.cli.report import as_json
from onward.errors import UsageError


def checkpoints(directory: Path, quick: bool, output: str) -> int:
    """One line each, newest first. Exit code 1 when there is none that is valid, as far as was looked."""
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory; give the one that run.checkpoint(dir=...) names")
    found = [_look(folder, quick) for folder in disk.folders(directory)]
    if output == "json":
        print(as_json(found))
    elif not found:
        print(f"no checkpoint in {directory}")
    else:
        _table(found)
    return 0 if any(entry["valid"] is not False for entry in found) else 1


def _look(folder: Path, quick: bool) -> dict[str, Any]:
    """`valid` is None where the files were not read: then nobody knows."""
    valid = None if quick else True
    entry: dict[str, Any] = {"name": folder.name, "step": disk.step_of(folder.name), "valid": valid, "problem": ""}
    try:
        manifest = disk.read_manifest(folder)
        entry |= {
            "ranks": manifest.world_size,
            "size_bytes": sum(f.size_bytes for f in manifest.files),
            "created": manifest.created,
            "reason": manifest.reason,
            "job": manifest.job,
            "torch": manifest.torch,
        }
        if not quick:
            disk.verify(folder, manifest)
    except disk.Invalid as e:
        entry |= {"valid": False, "problem": str(e)}
    return entry


def _table(found: list[dict[str, Any]]) -> None:
    lines = [("NAME", "RANKS", "SIZE", "CREATED", "WHY", "JOB", "VALID")]
    for e in found:
        size = f"{e['size_bytes'] / 1e6:.1f} MB" if "size_bytes" in e else "-"
        told = [str(e.get(key, "-")) for key in ("created", "reason", "job")]
        valid = "not read" if e["valid"] is None else "yes" if e["valid"] else f"no: {e['problem']}"
        lines.append((e["name"], str(e.get("ranks", "-")), size, *told, valid))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        print("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip())
