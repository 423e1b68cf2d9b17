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
    fields = _stat(pid)
    return 0 if not fields or fields[0] in (b"Z", b"X") else int(fields[19])


def is_stopped(pid: int) -> bool:
    """By a signal such as SIGSTOP; one that a debugger looks at is not."""
    return _stat(pid)[:1] == [b"T"]


_PF_EXITING = 0x4
_SIGKILL = 1 << 8  # in a mask of signals


def is_dying(pid: int) -> bool:
    """It was killed, or is gone; freeing its memory takes a large process a while, in which it still reads as there."""
    fields = _stat(pid)
    if not fields or fields[0] in (b"Z", b"X") or int(fields[6]) & _PF_EXITING:
        return True
    try:
        with open(f"/proc/{pid}/status") as f:
            masks = [int(line.split()[1], 16) for line in f if line.startswith(("SigPnd:", "ShdPnd:"))]
    except (OSError, ValueError):
        return True
    return any(mask & _SIGKILL for mask in masks)


def _stat(pid: int) -> list[bytes]:
    """What the kernel tells of a process, from its state on; nothing when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            stat = f.read()
        return stat[stat.rindex(b")") + 2 :].split()
    except (OSError, ValueError):
        return []


def is_dead(boot: str, pid: int, born: int) -> bool:
    """True when the kernel that we share says that this process is no more. Of another machine nothing is known."""
    return bool(boot) and boot == boot_id() and pid > 0 and birth_of(pid) != born
