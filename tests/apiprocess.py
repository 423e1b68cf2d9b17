"""Our API server as a process of its own: started, killed and stopped by tests."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from onward.kube.access import Access, load_access

ROOT = Path(__file__).resolve().parents[1]
START_S = 30.0
STOP_S = 20.0


class ServerProcess:
    """`python -m onward.local.api` with a state directory."""

    def __init__(self, state: Path, *flags: str) -> None:
        self.state, self.flags = state, flags
        self.process: subprocess.Popen[str] | None = None
        self.port = 0

    def start(self) -> None:
        """It says so when it serves."""
        command = [sys.executable, "-m", "onward.local.api", "--state", str(self.state), *self.flags]
        with open(self.state / "server.log", "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        watchdog = threading.Timer(START_S, self.process.kill)
        watchdog.start()
        line = self.process.stdout.readline()
        watchdog.cancel()
        assert "onward API server at" in line, (line, (self.state / "server.log").read_text())
        self.port = int(line.split(";")[0].rsplit(":", 1)[1])

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self._ended()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self._ended()

    def _ended(self) -> int:
        assert self.process is not None
        assert self.process.stdout is not None
        code = self.process.wait(STOP_S)
        self.process.stdout.close()
        return code


@contextlib.contextmanager
def api_server(state: Path) -> Iterator[Access]:
    """One that is there while somebody needs it, and the way to it."""
    server = ServerProcess(state)
    server.start()
    try:
        yield load_access(state / "kubeconfig")
    finally:
        server.kill()
