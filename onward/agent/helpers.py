"""The launcher's own helper processes: the guard and, on one node, the manager. Each is started again when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from onward.agent.processes import Child, disown, run_module
from onward.agent.settings import RunSettings

QUICK_S = 2.0  # a manager that lived no longer than this is started again with a growing delay
LONGEST_DELAY_S = 2.0


class Guard:
    """The agent's side of `guard.py`: it is told which processes there are, and sweeps up should we be killed."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._known: dict[int, str] = {}
        self._over = False
        self._start()

    def _start(self) -> None:
        command = [sys.executable, "-S", "-E", str(Path(__file__).with_name("guard.py")), str(self._run_dir)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        Child(disown(self._process), self._on_exit)
        for pid, mark in self._known.items():
            self._say(f"+{pid} {mark}\n")

    @property
    def pid(self) -> int:
        return self._process.pid

    def _on_exit(self, code: int) -> None:
        if not self._over:
            self._start()

    def add(self, pid: int, mark: str) -> None:
        self._known[pid] = mark
        self._say(f"+{pid} {mark}\n")

    def drop(self, pid: int) -> None:
        self._known.pop(pid, None)
        self._say(f"-{pid}\n")

    def stop(self) -> None:
        """All is well: nothing to sweep."""
        self._over = True
        self._say(".\n")
        if self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.close()

    def _say(self, line: str) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()


class OwnManager:
    """The manager of a job on one node. Its listening socket is ours, so that no port is ever lost with it."""

    def __init__(self, settings: RunSettings, token: bytes, log_dir: Path, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._token = token
        self._log_dir = log_dir
        self._say = say
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._socket.getsockname()[1]
        self._child: Child | None = None
        self._over = False
        self._delay_s = 0.0
        self._started_at = 0.0
        self._start()

    @property
    def pid(self) -> int:
        return self._child.pid if self._child is not None else 0

    def _start(self) -> None:
        if self._over:
            return
        s, fd = self._settings, self._socket.fileno()
        spec = {
            "fd": fd,
            "parent": os.getpid(),
            "world_size": s.nproc * s.max_nodes,
            "nodes": 1,
            "policies": [p.value for p in s.policies],
            "limits": {"max_restarts": s.max_restarts},
            "hang_floor_s": s.hang_floor_s,
            "hang_first_s": 120.0,
            "journal": str(self._log_dir / "journal"),
        }
        command = run_module("onward.manager.__main__", msgspec.json.encode(spec).decode())
        env = {**os.environ, "ONWARD_TOKEN": self._token.hex()}
        with _appending(self._log_dir / "manager.log") as said:
            p = subprocess.Popen(command, pass_fds=[fd], env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        self._started_at = time.monotonic()
        self._child = Child(disown(p), self._on_exit)

    def _on_exit(self, code: int) -> None:
        if self._over:
            return
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._say(f"the manager ended ({how}); starting a new one, ranks train on")
        quick = time.monotonic() - self._started_at < QUICK_S
        self._delay_s = min(LONGEST_DELAY_S, 2 * self._delay_s + 0.05) if quick else 0.0
        asyncio.get_running_loop().call_later(self._delay_s, self._start)

    def retire(self) -> None:
        """No new one when this one ends."""
        self._over = True

    def stop(self) -> None:
        self._over = True
        if self._child is not None:
            self._child.signal(signal.SIGKILL)
        self._socket.close()


def _appending(path: Path) -> BinaryIO:
    """Open for more, or for nothing when the directory is gone: what stands there is not worth a job."""
    try:
        return path.open("ab")
    except OSError:
        return open(os.devnull, "ab")
