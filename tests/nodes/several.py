"""Jobs on several nodes: each node an agent of its own on this machine, at its own address."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from kernel import free_port

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 180.0


class Node:
    """One `onward run`."""

    def __init__(self, name: str, command: list[str], tmp: Path) -> None:
        self.name = name
        self._out, self._err = tmp / f"{name}.out", tmp / f"{name}.err"
        self._logs = tmp / f"logs-{name}"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err, cwd=ROOT, start_new_session=True)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> str:
        return self._out.read_text() + self._err.read_text()

    @property
    def events(self) -> str:
        return "".join(path.read_text() for path in self._logs.glob("*/events.log"))

    def wait(self, limit_s: float = LIMIT_S) -> int:
        return self.process.wait(limit_s)

    @property
    def outcome(self) -> dict[str, Any]:
        text = self._out.read_text()
        found: dict[str, Any] = json.loads(text[text.index("\n{") + 1 if "\n{" in text else text.index("{") :])
        return found

    def pids(self, rank: int) -> list[int]:
        found: list[int] = self.outcome["pids"].get(str(rank), [])
        return found

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


class Nodes:
    """Starts the nodes of one job."""

    def __init__(self, tmp: Path, nodes: int, nproc: int) -> None:
        self._tmp = tmp
        self.digest = str(tmp / "state")
        self.started: list[Node] = []
        self.flags = ["--nnodes", str(nodes), "--nproc-per-node", str(nproc), "--hang-floor", "4", "-o", "json"]
        self.address = "127.0.0.1"
        self.port = free_port(self.address)

    def start(self, name: str, *flags: str, script: list[str], prefix: list[str] | None = None) -> Node:
        logs = self._tmp / f"logs-{name}"
        meet = ["--master-addr", self.address, "--master-port", str(self.port), "--log-dir", str(logs)]
        command = [sys.executable, "-m", "onward.cli.main", "run", *self.flags, *meet, *flags, *script]
        node = Node(name, [*(prefix or []), *command], self._tmp)
        self.started.append(node)
        return node

    def end(self) -> None:
        for node in self.started:
            node.kill()
