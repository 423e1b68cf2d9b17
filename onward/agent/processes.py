"""Child processes through pidfds: their death is an event, their exit status the kernel's word, nothing is polled."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable

from onward.errors import OnwardError

_libc = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
MARK = "ONWARD_PROCESS_MARK"  # in the environment of everything that a rank starts


def run_module(module: str, *args: str) -> list[str]:
    """The command for one of our modules. Unlike `python -m`, it never imports from the current directory."""
    code = f"import sys; sys.path[:1] == [''] and sys.path.pop(0); from {module} import main; main()"
    return [sys.executable, "-c", code, *args]


def become_reaper() -> None:
    """Orphans below this process become its children: it is the one that reaps them."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this kernel cannot make the launcher a child subreaper")
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as e:
        raise OnwardError(
            f"processes cannot be watched here (pidfd_open: {e.strerror}): that needs Linux 5.4, and in a container a "
            "runtime whose seccomp profile knows the call; update the runtime, or choose another profile for the pod"
        ) from e


def die_with(parent: int) -> None:
    """Be killed when the parent dies, in whichever way. Call it after being adopted by `parent`."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(70)


class Child:
    """A child process that is watched by pidfd."""

    def __init__(self, pid: int, on_exit: Callable[[int], None]) -> None:
        self.pid = pid
        self.exit_code: int | None = None
        self._fd = os.pidfd_open(pid)
        self._on_exit = on_exit
        asyncio.get_running_loop().add_reader(self._fd, self._reap)

    def _reap(self) -> None:
        info = os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG)
        if info is None:
            return
        self.exit_code = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
        self._on_exit(self.exit_code)

    def signal(self, number: int) -> None:
        if self.exit_code is None:
            try:
                signal.pidfd_send_signal(self._fd, number)
            except (ProcessLookupError, OSError):
                pass


def kill_tree(pid: int, mark: str = "") -> list[int]:
    """Kill what a dead process left behind: its session, and whatever carries its mark. Returns the pids.

    DataLoader workers inherit the rank's sockets: as long as one lives, its peers see no end of the connection.
    """
    needle = f"\0{MARK}={mark}\0".encode() if mark else b""
    return _kill_all(lambda: _belonging_to(pid, needle))


def kill_marked(run: str) -> list[int]:
    """Kill whatever the ranks of a run have left. For one whose launcher and guard are both gone."""
    needle = f"\0{MARK}={run}.".encode()
    return _kill_all(lambda: _belonging_to(0, needle))


def _kill_all(look: Callable[[], list[int]]) -> list[int]:
    """Again and again: they may have started more meanwhile."""
    killed: list[int] = []
    for _ in range(8):
        found = [p for p in look() if p not in killed]
        if not found:
            break
        for p in found:
            try:
                os.kill(p, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
            killed.append(p)
    return killed


def _belonging_to(pid: int, needle: bytes) -> list[int]:
    """Those in the session that `pid` leads, and those with the needle in their environment."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in (pid, os.getpid()):
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as f:
                stat = f.read()
            fields = stat[stat.rindex(b")") + 2 :].split()
            if fields[0] == b"Z":
                continue
            if pid and int(fields[3]) == pid:
                found.append(int(name))
                continue
            if needle:
                with open(f"/proc/{name}/environ", "rb") as f:
                    if needle in b"\0" + f.read() + b"\0":
                        found.append(int(name))
        except (OSError, ValueError):
            continue
    return found


def children() -> set[int]:
    """The processes whose parent we are, adopted ones too."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as f:
            return {int(p) for p in f.read().split()}
    except OSError:
        return set()


def reap_orphans(known: set[int], strangers: set[int]) -> set[int]:
    """Collect the exit status of adopted children that nobody watches. Returns those to be looked at next time.

    A child counts as such when it was a stranger the time before too: a rank that was just forked has still to be
    introduced, and its exit status must not be lost.
    """
    unknown = children() - known
    for pid in unknown & strangers:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            pass
    return unknown


def disown(p: subprocess.Popen[bytes]) -> int:
    """The pid of `p`, for a `Child` to watch. Without this, subprocess itself would reap it some time, unnoticed."""
    p.returncode = 0
    return p.pid
