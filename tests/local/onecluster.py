"""A real cluster on this machine for tests: started once by `onward up`, with times that suit tests."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from kernel import alive
from waiting import until

from onward.kube.access import load_access
from onward.kube.client import ApiError, Client, Unreachable
from onward.kube.objects import EVENTS, PODS, Resource

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
RUN = uuid.uuid4().hex[:8]  # of this run of the tests: another one beside it has its own pods and places
MOUNTS = Path(f"/onward-test-{RUN}")  # where pods see their volumes; it must not be left behind


def a_pod(
    name: str,
    *command: str,
    grace: int = 0,
    labels: dict[str, str] | None = None,
    container: dict[str, Any] | None = None,
    **spec: Any,
) -> str:
    """A pod of one container, `c`; it sleeps unless told otherwise."""
    only = {"name": "c", "image": "none", "command": list(command) or ["sleep", "600"], **(container or {})}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {"terminationGracePeriodSeconds": grace, "containers": [only], **spec},
        }
    )


def onward_local(*words: str, state: Path, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onward.local", *words, "--state", str(state)]
    kept = {k: v for k, v in os.environ.items() if k != "KUBECONFIG"}
    p = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT, env={**kept, **env})
    if check:
        assert p.returncode == 0, f"{' '.join(command)}\n{p.stdout}{p.stderr}\n{logs_of(state)}"
    return p


def logs_of(state: Path) -> str:
    found = []
    for file in sorted((state / "logs").glob("*.log")) if (state / "logs").exists() else []:
        found.append(f"== {file.name}\n{file.read_text(errors='replace')[-1500:]}")
    return "\n".join(found)


class OneCluster:
    """`say` runs `onward.local` as somebody; root unless told."""

    def __init__(self, state: Path, *flags: str, say: Callable[..., object] = onward_local) -> None:
        self.state, self._say = state, say
        words = ["--crash-backoff", "0.3", "--node-lease", "1", "--evict-after", "1", *flags]
        say("up", *words, state=state)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.client = Client(load_access(state / "kubeconfig"))
        self.call(self.client.__aenter__())

    def call(self, work: Awaitable[T], timeout_s: float = 60.0) -> T:
        async def go() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(go(), self._loop).result(timeout_s)

    def down(self) -> None:
        """Once; a second time there is nothing to do."""
        if self._loop.is_closed():
            return
        self.call(self.client.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()
        self._say("down", "--grace", "0", state=self.state)

    # What tests say

    def apply(self, text: str) -> list[dict[str, Any]]:
        made = []
        for obj in yaml.safe_load_all(text):
            if not obj:
                continue
            plural = {"Endpoints": "endpoints"}.get(obj["kind"], obj["kind"].lower() + "s")
            group, _, version = obj["apiVersion"].rpartition("/")
            resource = Resource(group, version, plural, obj["kind"])
            obj["metadata"].setdefault("namespace", "default")
            if obj["kind"] == "Pod":
                _mark(obj["spec"])
            made.append(self.call(self.client.create(resource, obj, obj["metadata"]["namespace"])))
        return made

    def pod(self, name: str, namespace: str = "default") -> dict[str, Any]:
        return self.call(self.client.get(PODS, name, namespace))

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.pod(name).get("status") or {}
        return found

    def until(self, good: Callable[[], T], what: str, timeout_s: float = 40.0) -> T:
        """Ask until the answer is true."""

        def look() -> T | None:
            try:
                return good()
            except Unreachable:  # the API server was killed, and is not back yet
                return None

        return until(look, lambda: f"{what}\n{logs_of(self.state)}", timeout_s)

    def phase(self, name: str, *phases: str, timeout_s: float = 40.0) -> dict[str, Any]:
        def good() -> bool:
            return self.status(name).get("phase") in phases

        try:
            self.until(good, f"{name} is {' or '.join(phases)}", timeout_s)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{json.dumps(self.status(name), indent=1)}\n{self.events(name)}") from e
        return self.status(name)

    def ready(self, name: str) -> dict[str, Any]:
        def good() -> bool:
            conditions = self.status(name).get("conditions") or []
            return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

        self.until(good, f"{name} is ready")
        return self.status(name)

    def container(self, name: str, container: str = "c") -> dict[str, Any]:
        status = self.status(name)
        every = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
        return next((c for c in every if c["name"] == container), {})

    def logs(self, name: str, **params: str) -> str:
        async def read() -> str:
            found = [chunk async for chunk in self.client.stream(PODS.path("default", name, "log"), params)]
            return b"".join(found).decode()

        return self.call(read())

    def events(self, name: str) -> list[str]:
        listed = self.call(self.client.list(EVENTS, "default", fieldSelector=f"involvedObject.name={name}"))
        return [f"{e['reason']}: {e['message']}" for e in listed["items"]]

    def event(self, name: str, text: str, timeout_s: float = 20.0) -> str:
        """Wait for an event with this text."""

        def look() -> str:
            return next((e for e in self.events(name) if text in e), "")

        try:
            return self.until(look, f"event {text!r} of {name}", timeout_s)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.events(name)}") from e

    def delete(self, name: str, grace: int | None = None) -> None:
        options = {} if grace is None else {"gracePeriodSeconds": grace}
        self.call(self.client.delete(PODS, name, "default", options))

    def gone(self, name: str, timeout_s: float = 30.0) -> None:
        def look() -> bool:
            try:
                self.pod(name)
            except ApiError as e:
                return e.code == 404
            return False

        self.until(look, f"{name} is gone", timeout_s)

    def pids(self, name: str) -> list[int]:
        """The processes of a pod, as the kernel sees them."""
        uid = self.pod(name)["metadata"]["uid"]
        return processes_with(f"ONWARD_CONTAINER={uid}/".encode())

    def part(self, name: str) -> int:
        """The pid of a process of the cluster."""
        return int((self.state / "run" / f"{name}.pid").read_text().split()[0])


def _mark(spec: dict[str, Any]) -> None:
    """Whatever becomes of a pod, its processes can be told from those of others."""
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        container["env"] = [*container.get("env", []), {"name": "ONWARD_TEST_RUN", "value": RUN}]


def left_processes() -> list[int]:
    """Of pods of this run of the tests, those that still live."""
    return [pid for pid in processes_with(f"ONWARD_TEST_RUN={RUN}".encode()) if alive(pid)]


def processes_with(marker: bytes) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if any(v.startswith(marker) for v in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")):
                    found.append(int(entry))
            except OSError:
                continue
    return sorted(found)
