"""Who holds a port that we wanted: a name helps more than "in use"."""

from __future__ import annotations

import errno

import psutil

LONGEST = 80  # letters of a command line


def holder_of(port: int) -> str:
    """Who listens on `port` on this machine, as far as we may know: ` by pid 12 (python train.py)`, or nothing."""
    try:
        listening = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        pid = next((c.pid for c in listening if c.laddr and c.laddr.port == port and c.pid), 0)
        if not pid:
            return ""
        process = psutil.Process(pid)
        if "onward.manager" in " ".join(process.cmdline()):
            process = process.parent() or process  # people know what they have started, not what that has started
        pid, words = process.pid, " ".join(process.cmdline())
    except (psutil.Error, OSError):
        return ""
    shown = words if len(words) <= LONGEST else f"{words[: LONGEST - 3]}..."
    return f" by pid {pid} ({shown})" if shown else f" by pid {pid}"


def why_not_bound(error: OSError, host: str, port: int, flag: str) -> str:
    """What is wrong with an address that cannot be listened on, and what to do. `flag` sets the port."""
    where = f"{host}:{port}" if port else host
    if error.errno == errno.EADDRINUSE and port:
        return f"cannot listen on {where}: the port is in use{holder_of(port)}; choose another one with {flag}"
    return f"cannot listen on {where}: {error.strerror or error}; give an address of this machine"
