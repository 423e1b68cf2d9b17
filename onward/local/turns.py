"""Turns: of all that start or end one cluster, one is at work at a time.

The lock is on the state directory itself, and goes with the process that holds it: nothing has to be cleaned up.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onward.errors import OnwardError, UsageError

LOOK_S = 0.05


@contextmanager
def take(state: Path, wait_s: float, make: bool = False) -> Iterator[bool]:
    """Wait for our turn. False: the directory is not there; `make` makes it."""
    deadline = time.monotonic() + wait_s
    fd = -1
    while fd < 0:
        if not make and not state.exists():
            yield False
            return
        fd = _locked(state, make)
        if fd < 0 and time.monotonic() > deadline:
            raise OnwardError(f"another onward up or down is at work in {state}; try again when it has ended")
        if fd < 0:
            time.sleep(LOOK_S)
    try:
        yield True
    finally:
        os.close(fd)


def _locked(state: Path, make: bool) -> int:
    """-1: somebody else is at work, or has just taken the directory away."""
    try:
        if make:
            _make(state)
        fd = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    except OSError as e:
        raise _unfit(state, e) from e
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_ino == os.stat(state).st_ino:
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)
    return -1


def _make(state: Path) -> None:
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileNotFoundError as e:  # a place like /proc, where nothing can be made
        raise _unfit(state, e) from e


def _unfit(state: Path, why: OSError) -> UsageError:
    return UsageError(f"cannot use {state}: {why.strerror}; choose another with --state")
