"""A rank's status page: a few numbers in shared memory, written every step without a system call.

The agent made the file, so it can be read while the rank is stopped and after it is dead. One writer (the rank's main
thread, and its link thread for the beat), one reader. Every number is written and read as one aligned machine word, so
that the reader never sees half of one; `struct.pack_into` would not do, it fills the place with zeros first.
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
    "compute_ns",
    "queued_ns",
    "inside",
)
_INDEX = {name: i for i, name in enumerate(_FIELDS)}
_MAGIC = 0x6F6E77617264
SIZE = 4096
_HEAD = struct.Struct("=qq")  # magic, step


def create(path: str) -> None:
    """Make an empty page. Space is reserved now: a full /dev/shm must be an error here, not a SIGBUS later."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.posix_fallocate(fd, 0, SIZE)
        os.pwrite(fd, _HEAD.pack(_MAGIC, -1), 0)
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
        self._words = memoryview(self._map).cast("q")
        self._floats = memoryview(self._map).cast("d")

    def set(self, name: str, value: int) -> None:
        self._words[_INDEX[name]] = value

    def get(self, name: str) -> int:
        return self._words[_INDEX[name]]

    def set_float(self, name: str, value: float) -> None:
        self._floats[_INDEX[name]] = value

    def get_float(self, name: str) -> float:
        return self._floats[_INDEX[name]]

    def touch(self, name: str) -> None:
        self._words[_INDEX[name]] = time.monotonic_ns()

    def age_s(self, name: str, now_ns: int) -> float:
        then = self.get(name)
        return max(0.0, (now_ns - then) / 1e9) if then else 0.0

    def close(self) -> None:
        self._words.release()
        self._floats.release()
        self._map.close()
