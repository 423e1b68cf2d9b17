"""Reading a container's log: the questions that `kubectl logs` asks."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from onward.kube.objects import read_stamp

POLL_S = 0.1


@dataclass(frozen=True)
class Wanted:
    follow: bool = False
    tail: int | None = None
    since: float | None = None  # seconds since the epoch
    timestamps: bool = False
    limit_bytes: int | None = None
    stream: str = ""  # "", "stdout" or "stderr"


def files(place: Path, container: str, previous: bool) -> list[Path]:
    """The parts of the current log, or of the one before, oldest first. Empty: there is none."""
    folder = place / "logs" / container
    numbers = sorted(int(p.stem) for p in folder.glob("*.log")) if folder.is_dir() else []
    if previous:
        numbers = numbers[:-1]
    if not numbers:
        return []
    newest = folder / f"{numbers[-1]}.log"
    return [p for p in (Path(f"{newest}.1"), newest) if p.exists()]


async def read(paths: list[Path], wanted: Wanted, running: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Text as people see it. With `follow`, for as long as the container runs, and until all is read."""
    left = wanted.limit_bytes
    async for text in _texts(paths, wanted, running):
        if left is not None:
            text = text[:left]
            left -= len(text)
        if text:
            yield text
        if left == 0:
            return


async def _texts(paths: list[Path], wanted: Wanted, running: Callable[[], bool]) -> AsyncIterator[bytes]:
    lines: Iterator[bytes] | deque[bytes]
    opened: BinaryIO | None = None
    try:
        for path in paths:
            if opened is not None:
                opened.close()
            opened = open(path, "rb")  # noqa: SIM115 - stays open to be followed
            lines = _complete(opened)
            if wanted.tail is not None:
                continue
            for line in lines:
                yield _show(line, wanted)
        if wanted.tail is not None:
            for line in _last(paths, wanted.tail):
                yield _show(line, wanted)
            if opened is not None:
                _skip_complete(opened)
        while wanted.follow and opened is not None:
            over = not running()
            got = False
            for line in _complete(opened):
                got = True
                yield _show(line, wanted)
            if got:
                continue
            if _moved(opened, paths[-1]):
                opened.close()
                opened = open(paths[-1], "rb")  # noqa: SIM115
                continue
            if over:
                return
            await asyncio.sleep(POLL_S)
    finally:
        if opened is not None:
            opened.close()


def _complete(f: BinaryIO) -> Iterator[bytes]:
    """Whole lines from where we are; a line that is being written is left for later."""
    while True:
        at = f.tell()
        line = f.readline()
        if not line.endswith(b"\n"):
            f.seek(at)
            return
        yield line


def _skip_complete(f: BinaryIO) -> None:
    for _ in _complete(f):
        pass


def _last(paths: list[Path], count: int) -> deque[bytes]:
    found: deque[bytes] = deque(maxlen=max(0, count))
    for path in paths:
        with open(path, "rb") as f:
            found.extend(_complete(f))
    return found


def _moved(f: BinaryIO, path: Path) -> bool:
    """The log was moved aside while we read it."""
    try:
        return os.fstat(f.fileno()).st_ino != path.stat().st_ino
    except OSError:
        return False


def _show(line: bytes, wanted: Wanted) -> bytes:
    parts = line.rstrip(b"\n").split(b" ", 3)
    if len(parts) < 4:
        return line
    at, stream, flag, text = parts
    if wanted.stream and stream.decode() != wanted.stream:
        return b""
    if wanted.since is not None and (_when(at) or 0.0) < wanted.since:
        return b""
    end = b"\n" if flag == b"F" else b""
    return (at + b" " if wanted.timestamps else b"") + text + end


def _when(at: bytes) -> float | None:
    """Nanoseconds are more than Python reads."""
    text = at.decode()
    return read_stamp(f"{text[:26]}Z" if len(text) > 27 else text)
