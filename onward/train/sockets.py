"""Finding and shutting the connections of one gloo group.

No torch call interrupts a blocked gloo collective; shutting its connected sockets does, within milliseconds. The
listening socket must never be shut: gloo answers that with std::terminate.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable
from typing import NamedTuple


def open_sockets() -> dict[int, int]:
    """fd -> inode of every socket of this process."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            info = os.fstat(int(name))
        except OSError:
            continue
        if stat.S_ISSOCK(info.st_mode):
            found[int(name)] = info.st_ino
    return found


class Door(NamedTuple):
    """Where somebody listens."""

    address: str
    port: int


class Connections:
    """The TCP connections of a group."""

    def __init__(self, found: dict[int, int]) -> None:
        self._found = found

    @staticmethod
    def since(before: dict[int, int]) -> Connections:
        """Those that appeared while it was built, and nothing else was done."""
        return Connections({fd: ino for fd, ino in _new(before).items() if _is_connection(fd)})

    @staticmethod
    def among(mine: Door, others: Iterable[Door]) -> Connections:
        """Those that came in at `mine`, or lead to one of the others: whatever else was done meanwhile."""
        doors = set(others)
        ends = {fd: (ino, _ends(fd)) for fd, ino in open_sockets().items() if _is_connection(fd)}
        found = {fd: ino for fd, (ino, e) in ends.items() if e is not None and (mine in e or doors & set(e))}
        return Connections(found)

    def __len__(self) -> int:
        return len(self._found)

    def shut(self) -> int:
        """Shut them in both directions. The descriptors stay gloo's to close. Returns how many were shut."""
        count = 0
        for fd, inode in self._found.items():
            try:
                if os.fstat(fd).st_ino != inode:
                    continue
                copy = os.dup(fd)
            except OSError:
                continue
            try:
                if os.fstat(copy).st_ino == inode:
                    with socket.socket(fileno=copy) as s:
                        copy = -1
                        s.shutdown(socket.SHUT_RDWR)
                        count += 1
            except OSError:
                pass
            finally:
                if copy >= 0:
                    os.close(copy)
        return count


def door_since(before: dict[int, int]) -> Door:
    """Where this process listens since then."""
    return next(ends[0] for fd in _new(before) if _is_tcp(fd) and not _is_connection(fd) and (ends := _ends(fd)))


def _new(before: dict[int, int]) -> dict[int, int]:
    return {fd: inode for fd, inode in open_sockets().items() if before.get(fd) != inode}


def _is_tcp(fd: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(fd)) as s:
            return s.family in (socket.AF_INET, socket.AF_INET6) and s.type == socket.SOCK_STREAM
    except OSError:
        return False


def _is_connection(fd: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(fd)) as s:
            return _is_tcp(fd) and not s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError:
        return False


def _ends(fd: int) -> tuple[Door, Door] | None:
    """This one, and the other; of one that listens, the same twice."""
    try:
        with socket.socket(fileno=os.dup(fd)) as s:
            here = Door(*s.getsockname()[:2])
            listens = s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            return here, here if listens else Door(*s.getpeername()[:2])
    except OSError:
        return None
