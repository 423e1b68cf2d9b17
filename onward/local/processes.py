"""The processes of a cluster: what they are called, how they are started, and who runs.

A process is known by a file with its pid and the time at which it began, so that a pid that was given to somebody else
since is never taken for ours.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from onward.local.plan import Plan
from onward.local.shim import linux

GUARD_MARK = "# the guard of a cluster of onward"  # by which it is found
LOG_BYTES = 10 * 1024 * 1024


@dataclass(frozen=True)
class Part:
    """One kind of process: `name` is also the name of its log and pid files."""

    name: str
    arguments: tuple[str, ...]


def parts(plan: Plan) -> list[Part]:
    """In the order in which they are started."""
    found = [Part("api", ("onward.local.api", "--port", str(plan.port), "--service-range", plan.service_cidr))]
    found.append(Part("network", ("onward.local.network",)))
    found.append(Part("controllers", ("onward.local.controllers",)))
    found.append(Part("operator", ("onward.local.operating",)))
    found += [Part(node.name, ("onward.local.node", "--name", node.name)) for node in plan.nodes]
    return found


def _pid_file(state: Path, name: str) -> Path:
    return state / "run" / f"{name}.pid"


def log_file(state: Path, name: str) -> Path:
    return state / "logs" / f"{name}.log"


def running(state: Path, name: str) -> int:
    """The pid of a process of ours that runs; 0: it does not."""
    try:
        pid, started = _pid_file(state, name).read_text().split()
    except (OSError, ValueError):
        return 0
    return int(pid) if linux.start_time(int(pid)) == started else 0


def write_pid(state: Path, name: str, pid: int) -> None:
    file = _pid_file(state, name)
    file.parent.mkdir(exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(f"{pid} {linux.start_time(pid)}")
    new.rename(file)


def start(state: Path, part: Part) -> int:
    """In a session of its own, with a log; it outlives whoever started it."""
    module, *arguments = part.arguments
    command = [sys.executable, "-m", module, "--state", str(state), *arguments]
    return known(state, part.name, spawn(command, log_file(state, part.name)))


def known(state: Path, name: str, pid: int) -> int:
    """Write down who was just started; one whom nobody would know (the disk is full) is ended, and OSError raised."""
    try:
        write_pid(state, name, pid)
    except OSError:
        end([pid], grace_s=0.0)
        raise
    return pid


def spawn(command: list[str], log: Path) -> int:
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.rename(f"{log}.1")
    with open(log, "ab") as out:
        p = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd="/", env=_env()
        )
    p.returncode = 0  # whoever waits for it does so by its pid; Popen must not complain
    return p.pid


def _env() -> dict[str, str]:
    """An editable or PYTHONPATH install must be found from any directory; the user's kubeconfig is not ours."""
    import onward

    root = str(Path(onward.__file__).resolve().parents[1])
    path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
    kept = {k: v for k, v in os.environ.items() if k != "KUBECONFIG"}
    return {**kept, "PYTHONPATH": path, "ONWARD_LOG": os.environ.get("ONWARD_LOG", "INFO")}


def start_supervisor(state: Path) -> None:
    """There is one at a time: a second one sees the first and goes."""
    spawn([sys.executable, "-m", "onward.local.supervisor", "--state", str(state)], log_file(state, "supervisor"))


def cluster_ends(state: Path) -> bool:
    return (state / "run" / "ending").exists() or not (state / "cluster.json").exists()


def strays(state: Path) -> list[int]:
    """Processes of this cluster that no file knows: started in the moment in which others were ended."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            ours = any(w.startswith(b"onward.local.") for w in words) and str(state).encode() in words
            guard = any(w.startswith(GUARD_MARK.encode()) and f"{str(state)!r}".encode() in w for w in words)
            if ours or guard:
                found.append(int(entry))
    return found


def end(pids: list[int], grace_s: float = 5.0) -> None:
    """SIGTERM, then SIGKILL for those that do not listen."""
    started = {pid: linux.start_time(pid) for pid in pids if pid}
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        alive = [pid for pid, when in started.items() if when and linux.start_time(pid) == when]
        for pid in alive:
            try:
                os.kill(pid, number)
            except OSError:
                pass
        deadline = time.monotonic() + wait_s
        while alive and time.monotonic() < deadline:
            time.sleep(0.02)
            _reap(alive)
            alive = [pid for pid in alive if linux.start_time(pid) == started[pid]]


def _reap(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except OSError:
            pass  # not our child
