"""The job's history on disk: append-only, checksummed, tolerant of a torn tail."""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from pathlib import Path

_HEAD = struct.Struct("<II")  # length, crc
_LIMIT = 16 << 20


class Journal:
    """Appends records; `last` is the newest whole one that was there when it was opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        records, self._end = _read(path)
        self.last = records[-1] if records else b""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._fd, self._end)  # a torn tail is cut off, not built upon

    def append(self, record: bytes) -> bool:
        """False when it could not be written, as on a full disk: then the journal ends before it."""
        data = _HEAD.pack(len(record), zlib.crc32(record)) + record
        try:
            if os.pwrite(self._fd, data, self._end) == len(data):
                self._end += len(data)
                return True
        except OSError:
            pass
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self._end)
        return False

    def close(self) -> None:
        os.close(self._fd)


def read(path: Path) -> list[bytes]:
    """Every whole record, oldest first."""
    return _read(path)[0]


def _read(path: Path) -> tuple[list[bytes], int]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    records, at = [], 0
    while at + _HEAD.size <= len(data):
        size, crc = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size : at + _HEAD.size + size]
        if not 0 < size <= _LIMIT or len(body) < size or zlib.crc32(body) != crc:
            break
        records.append(body)
        at += _HEAD.size + size
    return records, at
