"""Places in the machine's file system where volumes are mounted.

A mount needs something to be mounted on. A pod sees its volumes in a mount namespace of its own, but where `/job/code`
does not exist it must be made for real; so it is counted who needs it, and taken away again when nobody does.
(Removing it earlier would take the mount away from under another pod.)
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class MountPoints:
    """Shared by the nodes of a cluster, through a file under a lock."""

    def __init__(self, state: Path) -> None:
        self._file = state / "mountpoints.json"

    @contextmanager
    def _table(self) -> Iterator[dict[str, list[str]]]:
        fd = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "r+") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            text = f.read()
            table: dict[str, list[str]] = json.loads(text) if text else {}
            yield table
            f.seek(0)
            f.truncate()
            json.dump(table, f)

    def need(self, target: str, is_file: bool, pod: str) -> None:
        """Make `target` for a pod, with the directories above it, if it does not exist."""
        with self._table() as table:
            missing: list[str] = []
            path = os.path.normpath(target)
            while not os.path.lexists(path):
                missing.append(path)
                path = os.path.dirname(path)
            while path != "/" and path in table:  # made by us for another pod
                missing.append(path)
                path = os.path.dirname(path)
            for path in reversed(missing):
                if not os.path.lexists(path):
                    if is_file and path == missing[0]:
                        os.close(os.open(path, os.O_CREAT | os.O_CLOEXEC, 0o644))
                    else:
                        os.mkdir(path, 0o755)
                users = table.setdefault(path, [])
                if pod not in users:
                    users.append(pod)

    def release(self, pod: str) -> None:
        self._free(lambda users: [user for user in users if user != pod])

    def release_all(self) -> None:
        self._free(lambda users: [])

    def _free(self, rest: object) -> None:
        assert callable(rest)
        if not self._file.exists():
            return
        with self._table() as table:
            for path in sorted(table, key=len, reverse=True):
                table[path] = rest(table[path])
                if not table[path]:
                    del table[path]
                    _remove(path)


def _remove(path: str) -> None:
    try:
        if os.path.isdir(path):
            os.rmdir(path)
        elif os.path.getsize(path) == 0:
            os.unlink(path)
    except OSError:
        pass  # somebody put something there: it is theirs now
