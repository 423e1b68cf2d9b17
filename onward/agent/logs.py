"""Logs of ranks: files that the ranks write themselves, followed by the launcher for the screen.

One file per rank, process and stream, never reused: nothing of an earlier incarnation is overwritten, a slow screen
never blocks training, and what a killed launcher had not shown is still on disk.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

START_OF_TRACEBACK = "Traceback (most recent call last):"
UNREADABLE = ("SyntaxError", "IndentationError", "TabError")  # of a script that is not Python
_RANK = re.compile(r"^\[rank\d+\]: ?")
_CHUNK = 1 << 16
_LONGEST = 1 << 14  # a longer line is cut into pieces


class Follower:
    """Follows one file and hands out whole lines."""

    def __init__(self, path: Path, emit: Callable[[str], None]) -> None:
        self.path = path
        self._emit = emit
        self._at = 0
        self._rest = b""

    def poll(self, last: bool = False) -> None:
        try:
            if os.path.getsize(self.path) > self._at:
                with open(self.path, "rb") as f:
                    f.seek(self._at)
                    while data := f.read(_CHUNK):
                        self._at += len(data)
                        self._take(data)
        except OSError:
            return
        if last and self._rest:
            self._emit(self._rest.decode(errors="replace"))
            self._rest = b""

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._emit(line.decode(errors="replace"))
        if len(self._rest) > _LONGEST:
            self._emit(self._rest.decode(errors="replace"))
            self._rest = b""


def tail(path: Path, lines: int) -> tuple[str, ...]:
    """The last lines of a file, without the rank that torch puts in front of those that tell an error."""
    try:
        size = path.stat().st_size
        with path.open("rb") as f:
            f.seek(max(0, size - 16384))
            text = f.read().decode(errors="replace")
            return tuple(_RANK.sub("", line) for line in text.splitlines()[-lines:])
    except OSError:
        return ()


def last_traceback(lines: Sequence[str]) -> list[str]:
    """The last traceback in a log, to the end of the log; empty when there is none."""
    starts = [n for n, line in enumerate(lines) if line.startswith(START_OF_TRACEBACK)]
    return list(lines[starts[-1] :]) if starts else []


def last_error(lines: Sequence[str]) -> str:
    """The error itself of the last traceback: the first line after the frames that is not indented.

    Of a script that cannot even be read there is no traceback, only the error.
    """
    if not last_traceback(lines):
        return next((line for line in reversed(lines) if line.partition(":")[0] in UNREADABLE), "")
    return next((line for line in last_traceback(lines)[1:] if line and not line.startswith((" ", "\t"))), "")


def user_directory() -> Path:
    """Where this user's logs go unless told otherwise: a directory that nobody else can have prepared for us."""
    path = Path(tempfile.gettempdir()) / f"onward-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        info = path.lstat()
        if stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & 0o022:
            return path
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="onward-logs-"))


def error_file(path: Path) -> tuple[str, str]:
    """What a script under torch's `@record` wrote to TORCHELASTIC_ERROR_FILE: (error, traceback), empty if nothing."""
    try:
        with path.open("rb") as f:
            message = json.loads(f.read(1 << 20))["message"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "", ""
    if isinstance(message, str):
        return message, ""
    if not isinstance(message, dict):
        return "", ""
    extra = message.get("extraInfo")
    trace = extra.get("py_callstack", "") if isinstance(extra, dict) else ""
    return str(message.get("message", "")), str(trace)
