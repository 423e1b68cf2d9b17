"""Runs a command as somebody who is not root: `python normaluser.py COMMAND...`, started by root.

The Python that runs the tests may live where only root can look (/root, with mode 0700). So this happens in a mount
namespace in which such a directory is a new one that anybody may enter, and holds only what is needed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from onward.local.shim import linux  # noqa: E402

NOBODY = 65534


def closed(path: Path) -> Path | None:
    """The first directory on the way to it that others may not enter."""
    return next((p for p in [*reversed(path.parents), path] if p.stat().st_mode & 0o5 != 0o5), None)


def open_the_way() -> None:
    needed = {Path(p).resolve() for p in (sys.base_prefix, sys.prefix, sys.executable, str(ROOT))}
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    for door in {d for d in map(closed, needed) if d is not None}:
        behind = sorted(p for p in needed if p.is_relative_to(door))
        kept = {p: tempfile.mkdtemp() for p in behind if p.is_dir()}
        for path, place in kept.items():
            linux.mount(str(path), place, flags=linux.MS_BIND | linux.MS_REC)
        linux.mount("none", str(door), "tmpfs", data="mode=755")
        for path, place in kept.items():
            path.mkdir(parents=True, exist_ok=True)
            linux.mount(place, str(path), flags=linux.MS_BIND | linux.MS_REC)
            linux.umount(place)
            os.rmdir(place)


def main() -> None:
    open_the_way()
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
