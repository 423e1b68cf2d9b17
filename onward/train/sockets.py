"""Finding and shutting the connections of one gloo group.

No torch call interrupts a blocked gloo collective; shutting its connected sockets does, within milliseconds. The
listening socket must never be shut: gloo answers that with std::terminate.
"""

from __future__ import annotations

import os
import socket
import stat


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


class Connections:
    """The TCP connections that appeared while a group was built."""

    def __init__(self, before: dict[int, int]) -> None:
        after = open_sockets()
        self._found = {fd: ino for fd, ino in after.items() if before.get(fd) != ino and _is_connection(fd)}

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


def _is_connection(fd: int) -> bool:
    try:
        copy = os.dup(fd)
        with socket.socket(fileno=copy) as s:
            if s.family not in (socket.AF_INET, socket.AF_INET6) or s.type != socket.SOCK_STREAM:
                return False
            return not s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError:
        return False
