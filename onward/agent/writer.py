"""A small process that writes one node's part of a checkpoint, so that no rank and no launcher waits for a disk.

Copies pieces of files (in memory) to files in a new directory, checksums them on the way, and has them on the disk
before it says so: one line of JSON with what it wrote, or with what went wrong. It gives the checkpoint no name that
could be loaded; the launcher does, when it may. Runs with the standard library alone.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import sys

CHUNK = 4 << 20


def copy(source: str, offset: int, size: int, target: str) -> str:
    """Copy `size` bytes (-1: up to the end) and return their checksum."""
    total = hashlib.sha256()
    left = os.path.getsize(source) - offset if size < 0 else size
    with open(source, "rb", buffering=0) as src, open(target, "wb", buffering=0) as out:
        src.seek(offset)
        while left > 0:
            chunk = src.read(min(CHUNK, left))
            if not chunk:
                raise OSError(f"{source} ended too early")
            left -= len(chunk)
            total.update(chunk)
            view = memoryview(chunk)
            while view:
                view = view[out.write(view) :]
        os.fsync(out.fileno())
    return total.hexdigest()


def check(path: str, expected: str) -> None:
    """Read it back, past the page cache where the kernel lets us."""
    total = hashlib.sha256()
    with open(path, "rb", buffering=0) as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while chunk := f.read(CHUNK):
            total.update(chunk)
    if total.hexdigest() != expected:
        raise OSError(f"{path} reads back differently from what was written")


def write(spec: dict[str, object]) -> list[dict[str, object]]:
    folder = str(spec["folder"])
    os.makedirs(folder, exist_ok=True)
    written: list[dict[str, object]] = []
    files = spec["files"]
    assert isinstance(files, list)
    for name, source, offset, size in files:
        target = os.path.join(folder, name)
        own = f"{target}.{os.uname().nodename}.{os.getpid()}"  # another node may write the same, with the same content
        digest = copy(source, offset, size, own)
        if spec.get("verify"):
            check(own, digest)
        os.replace(own, target)
        written.append({"name": name, "size_bytes": os.path.getsize(target), "sha256": digest})
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)
    return written


def main() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # nobody would publish what we write without our parent
    spec = json.loads(sys.argv[1])
    os.nice(int(spec.get("nice", 0)))
    try:
        print(json.dumps({"files": write(spec)}), flush=True)
    except OSError as e:
        print(json.dumps({"error": f"{e.strerror or e}" + (f": {e.filename}" if e.filename else "")}), flush=True)


if __name__ == "__main__":
    main()
