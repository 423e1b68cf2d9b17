"""Plain HTTP to our API server: what tests use to ask it."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apiprocess import ServerProcess

Json = dict[str, Any]


class ApiProcess(ServerProcess):
    """The server, and plain HTTP to it."""

    ours = True

    def __init__(self, state: Path, *flags: str) -> None:
        super().__init__(state, *flags)
        self.token = ""
        self._kept = threading.local()

    def start(self) -> None:
        super().start()
        self.token = (self.state / "admin.token").read_text().strip()
        self.context = ssl.create_default_context(cafile=str(self.state / "ca.crt"))

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


def pod(name: str, **spec: Any) -> Json:
    container = {"name": "main", "image": "busybox", "command": ["true"]}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], **spec},
    }  # fmt: skip
