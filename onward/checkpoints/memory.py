"""Copies of the state in a node's memory: files in the run's private directory, which outlive the rank's process.

Two buffers hold the shared state, each a page that says which step it is of and then, byte for byte, what will be the
safetensors file on disk. The step is written last, so a buffer is whole or says that it holds nothing. A rank's local
state is a copy of its slot under a name of its own.

Shared memory may be small: a pod's has 64 MB where its template says nothing. A file for which there is no room goes
elsewhere, to a directory on disk that `elsewhere` beside this one leads to, and a link stands in its place. The kernel
writes it out in its own time, and it outlives the process as well.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import struct
import time
from pathlib import Path

from onward.log import get_logger

log = get_logger("onward.checkpoints")
BUFFERS = 2
ELSEWHERE = "elsewhere"
NOTHING = struct.pack("<q", -1)  # as the first word of a file: it holds no step
PAGE = 4096  # before the contents of a buffer
HEADER = struct.Struct("<qq")  # step (-1: nothing), bytes
BUSY = "busy"  # is there while a buffer is being written to disk
_LOCAL = struct.Struct("<8sqq")  # magic, step, last step begun
_MAGIC = b"onward-1"
LOCAL_PAGE = 64


def buffer_path(directory: Path, number: int) -> Path:
    return directory / f"shared.{number}"


def lead_elsewhere(run_dir: Path, target: Path) -> None:
    """What has no room below `run_dir` may go there."""
    os.symlink(target, run_dir / ELSEWHERE)


def clear(run_dir: Path) -> None:
    """Remove everything, elsewhere too."""
    shutil.rmtree(os.path.realpath(run_dir / ELSEWHERE), ignore_errors=True)
    shutil.rmtree(run_dir, ignore_errors=True)


def reserve(path: Path, size: int) -> None:
    """Have so many bytes behind a file of a run: here, or elsewhere, where it begins anew and holds nothing."""
    try:
        _allocate(path, size)
    except OSError as e:
        elsewhere = path.parent.parent / ELSEWHERE
        if e.errno not in (errno.ENOSPC, errno.EDQUOT) or path.is_symlink() or not elsewhere.is_dir():
            raise
        target = elsewhere / f"{path.parent.name}.{path.name}.{os.getpid()}.{time.monotonic_ns()}"
        _allocate(target, size)
        link = path.with_name(f".{path.name}.link")
        remove(link)  # of one that was killed
        os.symlink(target, link)
        os.replace(link, path)
        _say_once(path, elsewhere)


_said = False


def _say_once(path: Path, elsewhere: Path) -> None:
    global _said
    if not _said:
        _said = True
        where = os.path.realpath(elsewhere)
        log.warning("no room in %s: what is kept of the state goes to %s, which is slower", path.parent.parent, where)


def _allocate(path: Path, size: int) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        have = os.fstat(fd).st_size
        try:
            if not have:
                os.pwrite(fd, NOTHING, 0)
            os.posix_fallocate(fd, 0, size)
        except OSError:
            os.ftruncate(fd, have)  # what could be had is of no use, and others need it
            raise
    finally:
        os.close(fd)


def replace(new: Path, path: Path) -> None:
    """Give a whole file its name. What it takes the place of is gone, wherever it was."""
    old = os.path.realpath(path) if path.is_symlink() else ""
    os.rename(new, path)
    if old:
        with contextlib.suppress(OSError):
            os.unlink(old)


def remove(path: Path) -> None:
    """A file, wherever it is."""
    for name in dict.fromkeys((os.path.realpath(path), str(path))):
        with contextlib.suppress(OSError):
            os.unlink(name)


def buffers(directory: Path) -> dict[int, tuple[Path, int]]:
    """Step -> (buffer, size of its contents), of the whole ones."""
    found = {}
    for i in range(BUFFERS):
        path = buffer_path(directory, i)
        with contextlib.suppress(OSError, struct.error), open(path, "rb") as f:
            step, size = HEADER.unpack(f.read(HEADER.size))
            if step >= 0 and 0 < size <= os.fstat(f.fileno()).st_size - PAGE:
                found[step] = (path, size)
    return found


def local_path(directory: Path, rank: int, step: int) -> Path:
    return directory / f"local.{rank}.{step}"


def keep_local(directory: Path, rank: int, step: int, begun: int, image: bytes) -> None:
    """Put a rank's local state beside the buffers: whole or not at all."""
    path = local_path(directory, rank, step)
    temporary = path.with_name(f".{path.name}")
    remove(temporary)  # of one that was killed
    reserve(temporary, LOCAL_PAGE + len(image))
    with open(temporary, "r+b") as f:
        f.write(_LOCAL.pack(_MAGIC, step, begun).ljust(LOCAL_PAGE, b"\0"))
        f.write(image)
    replace(temporary, path)


def split_local(data: bytes) -> tuple[int, int, bytes]:
    """(step, last step begun, image of the slot). ValueError when it is none of ours."""
    if len(data) <= LOCAL_PAGE:
        raise ValueError("it is too short")
    magic, step, begun = _LOCAL.unpack_from(data)
    if magic != _MAGIC:
        raise ValueError("it does not begin as local state does")
    return step, begun, data[LOCAL_PAGE:]


def steps_of(directory: Path, rank: int) -> tuple[int, ...]:
    """The steps of which shared state and this rank's local state are here."""
    return tuple(sorted(s for s in buffers(directory) if local_path(directory, rank, s).exists()))


def local_steps(directory: Path, rank: int) -> tuple[int, ...]:
    """The steps of which this rank's local state is here, with or without the shared state."""
    prefix = f"local.{rank}."
    with contextlib.suppress(OSError):
        names = [name for name in os.listdir(directory) if name.startswith(prefix)]
        return tuple(sorted(int(name[len(prefix) :]) for name in names if name[len(prefix) :].isdigit()))
    return ()


def forget_locals(directory: Path, keep: set[int]) -> None:
    """Remove local state of other steps: no buffer goes with it any more."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            kind, _, rest = name.partition(".")
            step = rest.rpartition(".")[2]
            if kind == "local" and step.isdigit() and int(step) not in keep:
                remove(directory / name)
