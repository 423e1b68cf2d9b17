"""Probes: is a container started, alive, ready? The rules of the kubelet, one object per probe.

A probe runs in a process of its own: one that hangs is killed at its timeout and holds nobody up.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from typing import Any

from onward.local.shim import spawn
from onward.local.shim.loop import Loop, Timer

OUTPUT = 1024


class Probe:
    """Asks again and again, and tells `on_result(ok, text)` when a threshold is reached."""

    def __init__(
        self, loop: Loop, kind: str, spec: dict[str, Any], run: Callable[[int], int], on_result: Callable[..., None]
    ) -> None:
        self._loop, self.kind, self._spec, self._run, self._tell = loop, kind, spec, run, on_result
        self._successes = self._failures = 0
        self._timer: Timer | None = None
        self._pid = 0
        self.stopped = False

    def begin(self) -> None:
        self._timer = self._loop.after(self._seconds("initialDelaySeconds", 0), self._ask)

    def _seconds(self, name: str, default: float) -> float:
        return float(self._spec.get(name) or default)

    def stop(self) -> None:
        self.stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._pid:
            _kill(self._pid)

    def _ask(self) -> None:
        if self.stopped:
            return
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(write, True)
        try:
            self._pid = pid = self._run(write)
        except (spawn.StartError, OSError) as e:
            os.close(read)
            os.close(write)
            self._answer(False, str(e))
            return
        os.close(write)
        timeout_s = self._seconds("timeoutSeconds", 1)
        late: list[bool] = []

        def too_late() -> None:
            late.append(True)
            _kill(pid)

        timer = self._loop.after(timeout_s, too_late)

        def ended(status: int) -> None:
            timer.cancel()
            self._pid = 0
            try:
                text = os.read(read, OUTPUT).decode(errors="replace").strip()
            except OSError:
                text = ""
            os.close(read)
            if late:
                text = f"command timed out: after {timeout_s:g}s" if "exec" in self._spec else "timeout"
            self._answer(not late and os.waitstatus_to_exitcode(status) == 0, text)

        self._loop.on_exit(pid, ended)

    def _answer(self, ok: bool, text: str) -> None:
        if self.stopped:
            return
        self._successes = self._successes + 1 if ok else 0
        self._failures = 0 if ok else self._failures + 1
        if ok and self._successes == int(self._seconds("successThreshold", 1)):
            self._tell(self, True, text)
        elif not ok:
            self._tell(self, self._failures < int(self._seconds("failureThreshold", 3)) and None, text)
        if not self.stopped:
            self._timer = self._loop.after(self._seconds("periodSeconds", 10), self._ask)


def _kill(pid: int) -> None:
    for call in (os.killpg, os.kill):
        try:
            call(pid, signal.SIGKILL)
        except OSError:
            pass


def ask_network(spec: dict[str, Any], address: str) -> int:
    """httpGet or tcpSocket; writes what it saw to stdout."""
    port = str((spec.get("tcpSocket") or spec["httpGet"]).get("port"))
    if not port.isdecimal():
        os.write(1, f"the container has no port of the name {port!r}".encode()[:OUTPUT])
        return 1
    if "tcpSocket" in spec:
        return _tcp(spec["tcpSocket"], address)
    return _http(spec["httpGet"], address, float(spec.get("timeoutSeconds") or 1))


def _tcp(spec: dict[str, Any], address: str) -> int:
    try:
        socket.create_connection((spec.get("host") or address, int(spec["port"])), 30).close()
    except OSError as e:
        os.write(1, f"dial tcp {spec.get('host') or address}:{spec['port']}: {e.strerror or e}".encode())
        return 1
    return 0


def _http(spec: dict[str, Any], address: str, timeout_s: float) -> int:
    import http.client
    import ssl

    host, port, path = spec.get("host") or address, int(spec["port"]), spec.get("path") or "/"
    url = f"{str(spec.get('scheme') or 'HTTP').lower()}://{host}:{port}{path}"
    try:
        if spec.get("scheme") == "HTTPS":  # probes do not verify certificates
            context = ssl._create_unverified_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=timeout_s, context=context
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        headers = {h["name"]: h["value"] for h in spec.get("httpHeaders") or []}
        connection.request("GET", path, headers={"User-Agent": "kube-probe/onward", "Connection": "close", **headers})
        code = connection.getresponse().status
    except (OSError, http.client.HTTPException) as e:
        os.write(1, f'Get "{url}": {e}'.encode()[:OUTPUT])
        return 1
    if 200 <= code < 400:
        return 0
    os.write(1, f"HTTP probe failed with statuscode: {code}".encode())
    return 1
