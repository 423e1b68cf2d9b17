"""What the kernel says: whether a process lives, and which port is free."""

from __future__ import annotations

import socket
from pathlib import Path


def state_of(pid: int) -> str:
    """R, S, T, Z and so on; nothing when it is not there."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return ""


def alive(pid: int) -> bool:
    """There, and not merely a zombie that waits to be reaped."""
    return state_of(pid) not in ("", "Z", "X")


def free_port(address: str = "127.0.0.1") -> int:
    """Nobody listens on it now."""
    with socket.create_server((address, 0)) as free:
        return int(free.getsockname()[1])
