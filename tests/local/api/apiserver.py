"""The API server as a process, and plain HTTP to it: what tests use to start, kill and ask it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Json = dict[str, Any]
START_S = 20.0


class ApiProcess:
    """`python -m onward.local.api` with a state directory."""

    ours = True

    def __init__(self, state: Path, *flags: str) -> None:
        self.state, self.flags = state, flags
        self.process: subprocess.Popen[str] | None = None
        self.port = 0
        self.token = ""
        self._kept = threading.local()

    def start(self) -> None:
        log = open(self.state / "server.log", "a", encoding="utf-8")  # noqa: SIM115 - the child owns it
        command = [sys.executable, "-m", "onward.local.api", "--state", str(self.state), *self.flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        log.close()
        assert self.process.stdout is not None
        watchdog = threading.Timer(START_S, self.process.kill)
        watchdog.start()
        line = self.process.stdout.readline()
        watchdog.cancel()
        assert "onward API server at" in line, (line, (self.state / "server.log").read_text())
        self.port = int(line.split(";")[0].rsplit(":", 1)[1])
        self.token = (self.state / "admin.token").read_text().strip()
        self.context = ssl.create_default_context(cafile=str(self.state / "ca.crt"))

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def connect(self, timeout: float = 30) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=self.context)

    def raw(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None,
        token: str | None = None,
    ) -> tuple[int, bytes, http.client.HTTPMessage]:  # fmt: skip
        """One request on a connection that is kept between calls of a thread."""
        known = {"Authorization": f"Bearer {self.token if token is None else token}", **(headers or {})}
        for attempt in (0, 1):
            kept = getattr(self._kept, "connection", None)
            if kept is None or kept[0] != self.port:
                kept = (self.port, self.connect())
                self._kept.connection = kept
            try:
                kept[1].request(method, path, body, known)
                response = kept[1].getresponse()
                return response.status, response.read(), response.headers
            except (http.client.HTTPException, OSError):
                kept[1].close()
                self._kept.connection = None
                if attempt:
                    raise
        raise AssertionError("unreachable")

    def call(self, method: str, path: str, body: Any = None, content: str = "application/json") -> tuple[int, Json]:
        data = None if body is None else json.dumps(body).encode()
        code, answer, _ = self.raw(method, path, data, {"Content-Type": content} if data is not None else None)
        if not answer.startswith(b"{"):  # a path that no API knows is answered in plain text
            return code, {"message": answer.decode()} if answer else {}
        return code, json.loads(answer)

    def ok(self, method: str, path: str, body: Any = None, content: str = "application/json") -> Json:
        code, answer = self.call(method, path, body, content)
        assert code in (200, 201, 202), (method, path, code, answer)
        return answer

    def watch(self, path: str, timeout: float = 10) -> Iterator[Json]:
        """Events of one watch, until the server ends it; a socket silent for `timeout` raises."""
        connection = self.connect(timeout)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
            response = connection.getresponse()
            assert response.status == 200, response.read()
            while line := response.readline():
                yield json.loads(line)
        finally:
            connection.close()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def pod(name: str, **spec: Any) -> Json:
    container = {"name": "main", "image": "busybox", "command": ["true"]}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], **spec},
    }  # fmt: skip


PATH = os.environ.get("PATH", "")
