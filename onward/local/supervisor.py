"""The supervisor: keeps the processes of a cluster running. `python -m onward.local.supervisor --state DIR`.

Any of them can be killed; it is started again within a moment, and the network process finds its sockets as they were
(`shelf.py`). So can the supervisor itself: its guard, a process that
does nothing but wait for that, starts a new one, which finds the others running and leaves them alone.
"""

from __future__ import annotations

import argparse
import os
import selectors
import signal
import sys
import time
from pathlib import Path

from onward.errors import OnwardError
from onward.local import processes
from onward.local.plan import Plan, load
from onward.local.shelf import Shelf
from onward.log import get_logger

log = get_logger("local.supervisor")

LOOK_S = 0.2  # how often files that stop or start a node are looked for
STEADY_S = 10.0
FIRST_S, LAST_S = 0.05, 5.0
GUARD = "guard"


class Supervisor:
    def __init__(self, state: Path, plan: Plan) -> None:
        self._state, self._plan = state, plan
        self._parts = {part.name: part for part in processes.parts(plan)}
        self._selector = selectors.DefaultSelector()
        self._shelf = self._make_shelf()
        self._watched: dict[str, tuple[int, int, float]] = {}  # name -> pid, pidfd, since
        self._wait: dict[str, tuple[float, float]] = {}  # name -> not before, the delay that led to it

    def run(self) -> None:
        names = {node.name for node in self._plan.nodes}
        while not self._ending():
            for name in [GUARD, *self._parts]:
                if name in self._watched or (name not in (GUARD, "api") and not self._api_is_known()):
                    continue
                if name in names and (self._state / "nodes" / name / "stopped").exists():
                    continue
                self._begin(name)
            for key, _ in self._selector.select(self._pause_s()):
                key.data()

    def _make_shelf(self) -> Shelf | None:
        try:
            return Shelf(self._state, self._selector)
        except OSError as e:  # a full disk, for example: sockets are not kept over a restart then
            log.warning("sockets are not kept: %s", e)
            return None

    def _pause_s(self) -> float:
        """Until files are looked at again, or somebody is to be started."""
        now = time.monotonic()
        waits = [at - now for name, (at, _) in self._wait.items() if name not in self._watched]
        return min([LOOK_S, *(w for w in waits if w > 0)])

    def _api_is_known(self) -> bool:
        return (self._state / "kubeconfig").exists()

    def _ending(self) -> bool:
        return processes.cluster_ends(self._state)

    def _begin(self, name: str) -> None:
        not_before, _ = self._wait.get(name, (0.0, 0.0))
        if time.monotonic() < not_before:
            return
        pid = processes.running(self._state, name)
        if not pid:
            try:
                pid = self._start_guard() if name == GUARD else processes.start(self._state, self._parts[name])
            except OSError as e:  # a full disk, for example
                log.warning("%s could not be started: %s; again in %.2f s", name, e, LAST_S)
                self._wait[name] = (time.monotonic() + LAST_S, LAST_S)
                return
            log.info("%s started as %s", name, pid)
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return  # gone already; seen at the next look
        self._selector.register(fd, selectors.EVENT_READ, lambda: self._gone(name))
        self._watched[name] = (pid, fd, time.monotonic())

    def _start_guard(self) -> int:
        code = processes.GUARD_MARK + GUARD_CODE.format(
            state=str(self._state), supervisor=os.getpid(), python=sys.executable
        )
        pid = processes.spawn([sys.executable, "-E", "-S", "-c", code], processes.log_file(self._state, GUARD))
        return processes.known(self._state, GUARD, pid)

    def _gone(self, name: str) -> None:
        pid, fd, since = self._watched.pop(name)
        self._selector.unregister(fd)
        os.close(fd)
        try:
            os.waitpid(pid, os.WNOHANG)
        except OSError:
            pass  # it was started by a supervisor before us
        steady = time.monotonic() - since > STEADY_S
        delay_s = FIRST_S if steady else min(LAST_S, self._wait.get(name, (0.0, FIRST_S / 2))[1] * 2)
        self._wait[name] = (time.monotonic() + delay_s, delay_s)
        log.warning("%s (pid %s) has ended; again in %.2f s", name, pid, delay_s)


# Small enough to be read here: it must not need anything that could break.
GUARD_CODE = """
import os, select, subprocess, sys, time
state, supervisor = {state!r}, {supervisor}
try:
    fd = os.pidfd_open(supervisor)
    select.select([fd], [], [])
except OSError:
    pass
if os.path.exists(state + "/cluster.json") and not os.path.exists(state + "/run/ending"):
    log = open(state + "/logs/supervisor.log", "ab")
    subprocess.Popen([{python!r}, "-m", "onward.local.supervisor", "--state", state], stdin=subprocess.DEVNULL,
                     stdout=log, stderr=log, start_new_session=True, cwd="/")
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m onward.local.supervisor", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="the directory of the cluster")
    state = parser.parse_args().state.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        plan = load(state)
        lock = _lock(state)
        if lock < 0:
            return 0  # another one is at work
        _be_known(state)
        Supervisor(state, plan).run()
    except OnwardError as e:
        print(f"onward supervisor: {e}", file=sys.stderr)
        return 1
    return 0


def _be_known(state: Path) -> None:
    """A disk that is full may have room again later; until then nobody else may do our work."""
    while not processes.cluster_ends(state):
        try:
            processes.write_pid(state, "supervisor", os.getpid())
            return
        except OSError as e:
            log.warning("cannot write to %s: %s; again in %g s", state, e, LAST_S)
            time.sleep(LAST_S)


def _lock(state: Path) -> int:
    """One supervisor at a time; the lock goes with the process."""
    import fcntl

    (state / "run").mkdir(exist_ok=True)
    fd = os.open(state / "run" / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return -1
    return fd


if __name__ == "__main__":
    sys.exit(main())
