"""A rank's status page: a few numbers in shared memory, written every step without a system call.

The agent made the file, so it can be read while the rank is stopped and after it is dead. One writer (the rank's main
thread, and its link thread for the beat), one reader.
"""

from __future__ import annotations

import mmap
import os
import struct
import time

_FIELDS = (
    "magic",
    "step",
    "launched",
    "completed",
    "launched_ns",
    "progress_ns",
    "beat_ns",
    "section",
    "step_ns",
    "gate",
    "generation",
    "own_ns",
    "loss_bits",
    "loss_set",
    "total",
)
_OFFSET = {name: 8 * i for i, name in enumerate(_FIELDS)}
_MAGIC = 0x6F6E77617264
SIZE = 4096
_Q = struct.Struct("<q")
_D = struct.Struct("<d")


def create(path: str) -> None:
    """Make an empty page. Space is reserved now: a full /dev/shm must be an error here, not a SIGBUS later."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.posix_fallocate(fd, 0, SIZE)
        os.pwrite(fd, _Q.pack(_MAGIC) + _Q.pack(-1), 0)
    finally:
        os.close(fd)


class Page:
    """An open status page."""

    def __init__(self, path: str) -> None:
        fd = os.open(path, os.O_RDWR)
        try:
            self._map = mmap.mmap(fd, SIZE)
        finally:
            os.close(fd)

    def set(self, name: str, value: int) -> None:
        _Q.pack_into(self._map, _OFFSET[name], value)

    def get(self, name: str) -> int:
        value: int = _Q.unpack_from(self._map, _OFFSET[name])[0]
        return value

    def set_float(self, name: str, value: float) -> None:
        _D.pack_into(self._map, _OFFSET[name], value)

    def get_float(self, name: str) -> float:
        value: float = _D.unpack_from(self._map, _OFFSET[name])[0]
        return value

    def touch(self, name: str) -> None:
        self.set(name, time.monotonic_ns())

    def age_s(self, name: str, now_ns: int) -> float:
        then = self.get(name)
        return max(0.0, (now_ns - then) / 1e9) if then else 0.0

    def close(self) -> None:
        self._map.close()
