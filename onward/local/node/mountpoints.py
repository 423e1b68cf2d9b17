"""Places in the machine's file system where volumes are mounted.

A mount needs something to be mounted on. A pod sees its volumes in a mount namespace of its own, but where `/job/code`
does not exist it must be made for real; so it is counted who needs it, and taken away again when nobody does.
(Removing it earlier would take the mount away from under another pod.) There may be several clusters on a machine, and
all of them see the same file system: one table counts for all.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from onward.local import plan as plans

PLACE = Path("/var/lib/onward")
FILE = "mountpoints.json"

User = tuple[str, str]
"""The state directory of a cluster, and a pod of it."""
Table = dict[str, list[User]]
"""Path -> who needs it."""


class MountPoints:
    """Of one cluster. The table is shared with all others, under a lock, and is there as long as it holds something."""

    def __init__(self, state: Path, place: Path = PLACE) -> None:
        self._cluster = str(state.resolve())
        self._place = place

    def need(self, target: str, is_file: bool, pod: str) -> None:
        """Make `target` for a pod, with the directories above it, if it does not exist."""
        target = os.path.realpath(target)  # /var/run/x and /run/x are one place: who needs it is counted once
        if os.path.lexists(target) and not self._may_count():
            return  # nobody of us can have made it
        with self._lock():
            table = self._read()
            missing: list[str] = []
            path = target
            while not os.path.lexists(path):
                missing.append(path)
                path = os.path.dirname(path)
            while path != "/" and path in table:  # made for another pod
                missing.append(path)
                path = os.path.dirname(path)
            if not missing:
                return
            user = (self._cluster, pod)
            for path in missing:
                if user not in table.setdefault(path, []):
                    table[path].append(user)
            self._write(table)  # first: what is made is known, whatever happens next
            for path in reversed(missing):
                if not os.path.lexists(path):
                    if is_file and path == missing[0]:
                        os.close(os.open(path, os.O_CREAT | os.O_CLOEXEC, 0o644))
                    else:
                        os.mkdir(path, 0o755)

    def release(self, pod: str) -> None:
        self._free(lambda user: user == (self._cluster, pod))

    def release_all(self) -> None:
        self._free(lambda user: user[0] == self._cluster)

    def _free(self, goes: Callable[[User], bool]) -> None:
        if not os.access(self._place / FILE, os.W_OK):
            return  # nothing is made, or not by us
        with self._lock():
            table = self._read()
            for path in sorted(table, key=len, reverse=True):
                table[path] = [user for user in table[path] if not goes(user) and _is_cluster(user[0])]
                if not table[path]:
                    del table[path]
                    _remove(path)
            self._write(table)

    def _may_count(self) -> bool:
        there = next(p for p in (self._place, *self._place.parents) if p.exists())
        return os.access(there, os.W_OK)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        while (fd := self._locked()) < 0:
            pass
        try:
            yield
        finally:
            with suppress(OSError):
                self._place.rmdir()  # only if nothing is in it
            os.close(fd)

    def _locked(self) -> int:
        """-1: who had the lock before us has taken the directory away."""
        self._place.mkdir(mode=0o755, parents=True, exist_ok=True)
        try:
            fd = os.open(self._place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return -1
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            if os.fstat(fd).st_ino == os.stat(self._place).st_ino:
                return fd
        except FileNotFoundError:
            pass
        os.close(fd)
        return -1

    def _read(self) -> Table:
        try:
            found = json.loads((self._place / FILE).read_text())
        except (FileNotFoundError, ValueError):  # it can be empty after the machine has lost its power
            return {}
        return {path: [(cluster, pod) for cluster, pod in users] for path, users in found.items()}

    def _write(self, table: Table) -> None:
        file, new = self._place / FILE, self._place / f"{FILE}.new"
        if not table:
            file.unlink(missing_ok=True)
            new.unlink(missing_ok=True)
            return
        new.write_text(json.dumps(table))
        new.rename(file)


def _is_cluster(state: str) -> bool:
    """One whose directory was removed by hand will never say that it needs nothing any more."""
    return os.path.exists(os.path.join(state, plans.FILE))


def _remove(path: str) -> None:
    try:
        if os.path.isdir(path):
            os.rmdir(path)
        elif os.path.getsize(path) == 0:
            os.unlink(path)
    except OSError:
        pass  # somebody put something there: it is theirs now
