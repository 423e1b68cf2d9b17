"""Writing to a terminal or a pipe without ever waiting for it.

A terminal that is stopped with Ctrl-S, or a pipe that nobody reads, blocks whoever writes. The launcher must go on
mending the job meanwhile, so a thread of its own does the writing; what it cannot keep up with is left out and said so
(it is all in the log files).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TextIO

HELD_LINES = 20_000


class Pen:
    """Takes lines and returns at once. The order is kept, also between the two streams."""

    def __init__(self) -> None:
        self._lines: deque[tuple[int, bytes]] = deque()
        self._left_out = 0
        self._changed = threading.Condition()
        self._closed = False
        self._broken: set[int] = set()
        self._thread = threading.Thread(target=self._work, name="onward-pen", daemon=True)
        self._thread.start()

    def write(self, stream: TextIO, line: str) -> None:
        data = (line + "\n").encode(stream.encoding or "utf-8", errors="replace")
        with self._changed:
            if len(self._lines) >= HELD_LINES:
                self._lines.popleft()
                self._left_out += 1
            self._lines.append((stream.fileno(), data))
            self._changed.notify()

    def close(self, wait_s: float = 5.0) -> None:
        """Wait until all is written, but not for ever."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(wait_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._lines and not self._closed:
                    self._changed.wait()
                if not self._lines:
                    return
                fd, data = self._lines.popleft()
                left_out, self._left_out = self._left_out, 0
            if left_out:
                self._put(fd, b"onward: %d lines were left out here; they are in the log files\n" % left_out)
            self._put(fd, data)

    def _put(self, fd: int, data: bytes) -> None:
        # Not through sys.stdout: a write that blocks there holds a lock that the end of the interpreter waits for.
        try:
            while data and fd not in self._broken:
                data = data[os.write(fd, data) :]
        except OSError:
            self._broken.add(fd)  # the reader is gone; training is not
