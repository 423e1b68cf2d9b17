"""Who lives, by the kernel's word: for processes that share a machine."""

from __future__ import annotations

import os


def boot_id() -> str:
    """Equal for two processes that share a kernel and see each other's process numbers."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as f:
            return f.read().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def birth_of(pid: int) -> int:
    """When a process started, in the kernel's ticks; 0 when there is none, or only its corpse."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            stat = f.read()
        fields = stat[stat.rindex(b")") + 2 :].split()
        return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0


def is_dead(boot: str, pid: int, born: int) -> bool:
    """True when the kernel that we share says that this process is no more. Of another machine nothing is known."""
    return bool(boot) and boot == boot_id() and pid > 0 and birth_of(pid) != born
