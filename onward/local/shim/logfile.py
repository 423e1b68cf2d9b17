"""A container's log: one line of the file per line of output, with its time and stream, as container runtimes write it.

    2026-01-02T03:04:05.678901234Z stdout F the text
    ...                            stderr P the first part of a line that has not ended yet

Bounded: at `MAX_BYTES` the file is moved aside and a new one begun; one old part is kept.
"""

from __future__ import annotations

import os
import time

MAX_BYTES = 10 * 1024 * 1024
MAX_LINE = 16 * 1024


def now_stamp() -> str:
    ns = time.time_ns()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ns // 10**9)) + f".{ns % 10**9:09d}Z"


class LogFile:
    """Takes bytes as they come out of a pipe."""

    def __init__(self, path: str, max_bytes: int = MAX_BYTES) -> None:
        self._path, self._max = path, max_bytes
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self._size = os.fstat(self._fd).st_size
        self._held = {"stdout": b"", "stderr": b""}

    def feed(self, stream: str, data: bytes) -> None:
        held = self._held[stream] + data
        lines = held.split(b"\n")
        rest = lines.pop()
        out = bytearray()
        head = f"{now_stamp()} {stream} ".encode()
        for line in lines:
            out += self._parts(head, line) + head + b"F " + line[len(line) // MAX_LINE * MAX_LINE :] + b"\n"
        if len(rest) >= MAX_LINE:
            out += self._parts(head, rest)
            rest = rest[len(rest) // MAX_LINE * MAX_LINE :]
        self._held[stream] = rest
        if out:
            self._write(bytes(out))

    @staticmethod
    def _parts(head: bytes, line: bytes) -> bytes:
        whole = len(line) // MAX_LINE
        return b"".join(head + b"P " + line[i * MAX_LINE : (i + 1) * MAX_LINE] + b"\n" for i in range(whole))

    def flush(self, stream: str) -> None:
        """The stream has ended: what came without an end of line is a partial line."""
        rest, self._held[stream] = self._held[stream], b""
        if rest:
            self._write(f"{now_stamp()} {stream} P ".encode() + rest + b"\n")

    def _write(self, data: bytes) -> None:
        if self._size and self._size + len(data) > self._max:
            self._rotate()
        try:
            os.write(self._fd, data)
            self._size += len(data)
        except OSError:
            pass  # a full disk must not end the container

    def _rotate(self) -> None:
        try:
            os.rename(self._path, self._path + ".1")
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        except OSError:
            return
        os.close(self._fd)
        self._fd, self._size = fd, 0

    def close(self) -> None:
        os.close(self._fd)


def tail_text(path: str, lines: int = 80, size: int = 2048) -> str:
    """The last words of a log, without times; for termination messages."""
    try:
        with open(path, "rb") as f:
            f.seek(max(0, os.fstat(f.fileno()).st_size - 4 * size))
            found = f.read().split(b"\n")[-lines - 1 :]
    except OSError:
        return ""
    texts = [parts[3] for parts in (line.split(b" ", 3) for line in found) if len(parts) == 4]
    return b"\n".join(texts)[-size:].decode(errors="replace")
