"""What `ps` and `top` call a process: the kernel's own name for it, fifteen bytes."""

from __future__ import annotations

import contextlib
from pathlib import Path

_COMM = Path("/proc/self/comm")
_LONGEST = 15


def entitle(role: str, job: str) -> None:
    """Show this process as `role:job`, as far as that fits."""
    with contextlib.suppress(OSError):
        _COMM.write_bytes(f"{role}:{job}".encode(errors="replace")[:_LONGEST])


def take_place() -> None:
    """A spare is its rank from now on."""
    with contextlib.suppress(OSError):
        old = _COMM.read_bytes().strip()
        if old.startswith(b"spare"):
            _COMM.write_bytes(b"rank" + old.removeprefix(b"spare"))
