"""The launcher's own helper processes: the guard and the manager. Each is started again when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from onward.agent.busy import STOPPED_S, Standstill
from onward.agent.meeting import Meeting
from onward.agent.processes import Child, disown, run_module
from onward.agent.settings import RunSettings
from onward.wire.identity import Identity

QUICK_S = 2.0  # a manager that lived no longer than this is started again with a growing delay
LONGEST_DELAY_S = 2.0
PIPE_ROOM = 32768  # what a pipe takes before anybody reads it
STUCK_S = 15.0  # without a word from a manager that we host; a busy machine may take seconds to start one
LONGEST_START_S = 240.0  # and minutes, where it has more to do than it can
NOT_NEEDED = 75  # how a manager ends that has nobody to manage


class Guard:
    """The agent's side of `guard.py`: it is told which processes there are, and sweeps up should we be killed."""

    def __init__(self, run_dir: Path, job: str) -> None:
        self._run_dir = run_dir
        self._job = job
        self._known: dict[int, str] = {}
        self._over = False
        self._ear = -1  # our end of its pipe
        self._start()

    def _start(self) -> None:
        """It is told what it must know before it is there: should we die in between, it finds that in the pipe."""
        told = "".join(f"+{pid} {mark}\n" for pid, mark in self._known.items()).encode()
        self._close()
        inside, self._ear = os.pipe()
        os.write(self._ear, told[:PIPE_ROOM])
        script = str(Path(__file__).with_name("guard.py"))
        command = [sys.executable, "-S", "-E", script, str(self._run_dir), self._job]
        # A process group of its own, in our session: should we be killed while it is stopped, the kernel continues it.
        with open(inside, "rb") as read:
            self._child = Child(disown(subprocess.Popen(command, stdin=read, preexec_fn=os.setpgrp)), self._on_exit)
        self._standstill = Standstill(self.pid)
        self._say(told[PIPE_ROOM:])

    @property
    def pid(self) -> int:
        return self._child.pid

    def end_if_stopped(self) -> None:
        """One that is stopped hears nothing, and might not be continued when it is needed: another takes its place."""
        if not self._over and self._standstill.lasts(time.monotonic()) > STOPPED_S:
            self._child.signal(signal.SIGKILL)

    def _on_exit(self, code: int) -> None:
        if not self._over:
            self._start()

    def add(self, pid: int, mark: str) -> None:
        self._known[pid] = mark
        self._say(f"+{pid} {mark}\n".encode())

    def drop(self, pid: int) -> None:
        self._known.pop(pid, None)
        self._say(f"-{pid}\n".encode())

    def stop(self) -> None:
        """All is well: nothing to sweep."""
        self._over = True
        self._say(b".\n")
        self._close()
        self._child.signal(signal.SIGCONT)  # one that was stopped would stay for ever

    def _say(self, text: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._ear, text)

    def _close(self) -> None:
        ear, self._ear = self._ear, -1
        with contextlib.suppress(OSError):
            os.close(ear)


class ManagerPatience:
    """How long a manager may say nothing. Each that was ended before its first word gives the next twice the time: on a
    machine that is too busy to start one so soon, none would ever begin else.
    """

    def __init__(self) -> None:
        self._limit_s = STUCK_S

    def ends(self, silent_s: float, alive_s: float) -> bool:
        """Whether one that was started so long ago is given up. `silent_s`: since this or an earlier one spoke."""
        spoke = silent_s < alive_s
        if spoke:
            self._limit_s = STUCK_S
        if min(silent_s, alive_s) <= self._limit_s:
            return False
        if not spoke:
            self._limit_s = min(LONGEST_START_S, 2 * self._limit_s)
        return True


class OwnManager:
    """A manager that this agent hosts. The listening socket is ours, so that no port is ever lost with the process.

    The job's first manager is started at once. On the other nodes one is started when somebody knocks: the job's
    manager is gone, and this node is next in line.
    """

    def __init__(
        self, settings: RunSettings, meeting: Meeting, identity: Identity, log_dir: Path, say: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._meeting = meeting
        self._identity = identity
        self._log_dir = log_dir
        self._say = say
        self._socket = meeting.manager_socket
        self._child: Child | None = None
        self._over = False
        self.stopping = False  # the job is told to end: what becomes of its manager is nobody's concern
        self._delay_s = 0.0
        self._started_at = 0.0
        self._standstill = Standstill(0)
        self._patience = ManagerPatience()
        self._gone = asyncio.Event()
        if meeting.hosts:
            self._start()
        else:
            self._wait_for_a_knock()

    @property
    def pid(self) -> int:
        return self._child.pid if self._child is not None and self._child.exit_code is None else 0

    def _wait_for_a_knock(self) -> None:
        self._gone.set()
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._on_knock)

    def _on_knock(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        if not self._over:
            where = self._meeting.member.manager.replace("|", ":")
            self._say(f"somebody looks for a manager here; starting one at {where}")
            self._start()

    def _start(self) -> None:
        if self._over:
            return
        s, fd = self._settings, self._socket.fileno()
        spec = {
            "fd": fd,
            "parent": os.getpid(),
            "world_size": s.nproc * s.nodes,
            "nodes": s.nodes,
            "policies": [p.value for p in s.policies],
            "limits": {
                "max_restarts": s.max_restarts,
                "reschedule_s": s.reschedule_s,
                "min_nodes": s.min_nodes,
                "hot_switch": s.sub_healthy == "hotSwitch",
            },
            "hang_floor_s": s.hang_floor_s,
            "hang_first_s": 120.0,
            "node_timeout_s": s.node_timeout_s,
            "fail_stop_s": s.fail_stop_s,
            "rules": s.rules,
            "seat": self._meeting.member.id,
            "job": s.job_name,
            "name": s.name,
            "journal": str(self._log_dir / "journal"),
        }
        command = run_module("onward.manager.__main__", msgspec.json.encode(spec).decode())
        env = {**os.environ, **self._identity.environment}
        with _appending(self._log_dir / "manager.log") as said:
            p = subprocess.Popen(command, pass_fds=[fd], env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        self._started_at = time.monotonic()
        self._gone.clear()
        self._child = Child(disown(p), self._on_exit)

    def _on_exit(self, code: int) -> None:
        if self._over:
            self._gone.set()
            return
        if code in (0, NOT_NEEDED) and self._settings.several:
            if code == NOT_NEEDED:
                self._say("the manager here is not in office and ended")
            self._wait_for_a_knock()
            return
        if not self.stopping:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            self._say(f"the manager ended ({how}); starting a new one, ranks train on")
        quick = time.monotonic() - self._started_at < QUICK_S
        self._delay_s = min(LONGEST_DELAY_S, 2 * self._delay_s + 0.05) if quick else 0.0
        asyncio.get_running_loop().call_later(self._delay_s, self._start)

    def end_if_stopped(self) -> None:
        """The kernel's word for it, long before its silence would be one."""
        if self.pid != self._standstill.pid:
            self._standstill = Standstill(self.pid)
        lasts = self._standstill.lasts(time.monotonic()) if self.pid else 0.0
        if lasts > STOPPED_S and self._child is not None and not self._over:
            self._say(f"the manager has been stopped for {lasts:.0f} s; killing it")
            self._standstill = Standstill(0)
            self._child.signal(signal.SIGKILL)

    def end_if_silent(self, silent_s: float) -> None:
        """One that is stopped or stuck is as good as dead, and is replaced; a stopped process can be killed."""
        alive_s = time.monotonic() - self._started_at
        if self.pid and self._child is not None and not self._over and self._patience.ends(silent_s, alive_s):
            self._say(f"the manager has not answered for {min(silent_s, alive_s):.0f} s; killing it")
            self._started_at = time.monotonic()
            self._child.signal(signal.SIGKILL)

    def retire(self) -> None:
        """No new one when this one ends."""
        self._over = True

    async def farewell(self, limit_s: float) -> None:
        """Let it tell the other nodes how the job ended. It ends by itself when they have all gone."""
        self._over = True
        if self.pid:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._gone.wait(), limit_s)

    def stop(self) -> None:
        self._over = True
        with contextlib.suppress(ValueError, OSError):
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
        if self._child is not None:
            self._child.signal(signal.SIGKILL)
        self._socket.close()


def _appending(path: Path) -> BinaryIO:
    """Open for more, or for nothing when the directory is gone: what stands there is not worth a job."""
    try:
        return path.open("ab")
    except OSError:
        return open(os.devnull, "ab")
