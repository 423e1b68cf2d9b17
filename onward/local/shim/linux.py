"""The few system calls that Python 3.10 does not offer."""

from __future__ import annotations

import ctypes
import functools
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWNET = 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 32, 4096, 16384
MS_PRIVATE, MS_SLAVE = 1 << 18, 1 << 19
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{what}: {os.strerror(errno)}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int = 0) -> None:
    _check(_libc.setns(fd, kind), "setns")


def enter(path: str, kind: int = 0) -> None:
    """Join the namespace that a file stands for."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        setns(fd, kind)
    finally:
        os.close(fd)


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        data.encode() or None,
    )
    _check(result, f"mount {source} at {target}")


def umount(target: str, flags: int = MNT_DETACH) -> None:
    _check(_libc.umount2(os.fsencode(target), flags), f"umount {target}")


def sethostname(name: str) -> None:
    data = name.encode()
    _check(_libc.sethostname(data, len(data)), "sethostname")


def prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


_may: list[bool] = []


def may_mount() -> bool:
    """May this process make namespaces and mount in them? Root in a container often may not, so it is tried out."""
    if not _may:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                unshare(CLONE_NEWNS | CLONE_NEWUTS)
                mount("none", "/", flags=MS_REC | MS_PRIVATE)
                code = 0
            finally:
                os._exit(code)
        _may.append(os.waitpid(pid, 0)[1] == 0)
    return _may[0]


@functools.cache
def boot_id() -> str:
    """Of this boot of the machine. Empty: not told here."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as f:
            return f.read().strip()
    except OSError:
        return ""


def start_time(pid: int) -> str:
    """When a process began, as boot and ticks: with it, a number names one process for ever. Empty: gone."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else f"{fields[19]}@{boot_id()}"


def holders(marker: bytes) -> list[int]:
    """Processes that were started with `marker` among their environment."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as f:
                if marker in f.read().split(b"\0") and int(entry) != os.getpid():
                    found.append(int(entry))
        except OSError:
            continue
    return found
