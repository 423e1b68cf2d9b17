"""A tiny process that outlives the launcher by a moment: when it is gone, whatever its ranks had started goes too.

Ranks themselves end by the kernel's parent-death signal; their own children (shell scripts, spawned workers) may not.
The launcher writes `+pid mark` and `-pid` lines to our standard input; its end is the end of the launcher, however it
died. We are in a process group of our own but in the launcher's session, so that the kernel continues a guard that was
stopped (and hangs up on it, which it ignores) when the launcher is gone. The launcher's private directory, named by our
first argument, goes last: it is memory. Runs with the standard library alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys

SWEEPS = 50


def _session_of(name: str) -> int:
    """0 of one that is dead already."""
    with open(f"/proc/{name}/stat", "rb") as f:
        stat = f.read()
    fields = stat[stat.rindex(b")") + 2 :].split()
    return 0 if fields[0] in (b"Z", b"X") else int(fields[3])


def _sweep(pids: dict[int, str]) -> bool:
    """Kill what is there. True when something was: it may have started more meanwhile."""
    found = False
    marks = {f"ONWARD_PROCESS_MARK={m}".encode() for m in pids.values()}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            session = _session_of(name)
            mine = session > 0 and (int(name) in pids or session in pids)
            if not mine:
                with open(f"/proc/{name}/environ", "rb") as f:
                    mine = bool(marks & set(f.read().split(b"\0")))
            if mine:
                os.kill(int(name), signal.SIGKILL)
                found = True
        except (OSError, ValueError):
            continue
    return found


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        with open("/proc/self/comm", "wb") as comm:  # what `ps` shows
            comm.write(f"guard:{sys.argv[2]}".encode(errors="replace")[:15])
    except OSError:
        pass
    pids: dict[int, str] = {}
    clean = False
    for line in sys.stdin:
        if line.startswith("+"):
            pid, _, mark = line[1:].strip().partition(" ")
            pids[int(pid)] = mark
        elif line.startswith("-"):
            pids.pop(int(line[1:]), None)
        elif line.startswith("."):
            clean = True
            break
    if not clean:
        for _ in range(SWEEPS):
            if not _sweep(pids):
                break
        elsewhere = os.path.join(sys.argv[1], "elsewhere")  # see `onward.checkpoints.memory`
        shutil.rmtree(os.path.realpath(elsewhere), ignore_errors=True)
        shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
