"""One container of a pod: its process, log, probes, hooks, and what is known of it."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from onward.local.shim import cgroups, linux, logfile, probes, spawn
from onward.local.shim.loop import Loop, Timer
from onward.local.shim.streams import Streams

MESSAGE_BYTES = 4096
HOOK_OUTPUT = 1024


class Container:
    """Started, ended and started again by the pod; tells it through `changed` and `event`."""

    def __init__(
        self,
        loop: Loop,
        spec: dict[str, Any],
        group: cgroups.Group,
        place: str,
        address: str,
        changed: Callable[[], None],
        event: Callable[[str, str, str], None],
    ) -> None:
        self.spec, self.name = spec, str(spec["name"])
        self._loop, self._place, self._address = loop, place, address
        self._changed, self._event = changed, event
        self._group = group.child(self.name)
        self.state: dict[str, Any] = {"state": "waiting", "reason": "PodInitializing", "message": ""}
        self.last: dict[str, Any] | None = None
        self.restarts = -1  # the first start is not a restart
        self.ready = self.started = False
        self.pid = 0
        self.killing = False
        self.backoff_s = 0.0
        self.restart_at: Timer | None = None
        self._probes: list[probes.Probe] = []
        self._deadline: Timer | None = None
        self._kills = 0
        self._streams: Streams | None = None

    @property
    def running(self) -> bool:
        return bool(self.state["state"] == "running")

    @property
    def ended(self) -> bool:
        return bool(self.state["state"] == "terminated")

    @property
    def succeeded(self) -> bool:
        return self.ended and self.state["exitCode"] == 0

    def facts(self) -> dict[str, Any]:
        return {
            **self.state,
            "last": self.last,
            "restarts": max(0, self.restarts),
            "ready": self.ready,
            "started": self.started,
            "pid": self.pid,
        }

    def log_path(self, restart: int) -> str:
        return f"{self._place}/logs/{self.name}/{restart}.log"

    def restore(self, facts: dict[str, Any]) -> None:
        """A shim before this one knew it: it runs no more, and how it ended is not known."""
        self.restarts = int(facts.get("restarts", 0)) if facts.get("state") != "waiting" or facts.get("last") else -1
        self.last = facts.get("last")
        self.state = {k: v for k, v in facts.items() if k not in ("last", "restarts", "ready", "started", "pid")}
        if self.state["state"] == "waiting" and self.last is not None:
            self.state = {**self.last, "state": "terminated"}
        if self.running:
            self.state = {
                **self.state,
                "state": "terminated",
                "exitCode": 137,
                "reason": "ContainerStatusUnknown",
                "message": "The container could not be located when its supervisor was restarted",
                "finishedAt": time.time(),
            }

    def begin(self) -> bool:
        """Start it, for the first time or again. False: it could not be started, and has ended with StartError."""
        if self.ended:
            self.last = {k: v for k, v in self.state.items() if k != "state"}
        self.restarts += 1
        self.restart_at = None
        self.killing = False
        self._forget_old_logs()
        identity = f"onward://{self.spec['pod_uid']}/{self.name}/{self.restarts}"
        self._open_message()
        limits = self._make_group()
        if limits:
            self._event("Warning", "LimitsNotEnforced", f"container {self.name}: {limits}")
        self.close_streams()
        streams = Streams(self._loop, self.log_path(self.restarts), self.spec)
        try:
            self.pid = spawn.start(self.spec, self._group, streams.child)
        except (spawn.StartError, OSError) as e:
            streams.abandon()
            self._not_started(identity, str(e))
            return False
        streams.started()
        self._streams = streams
        self.state = {"state": "running", "startedAt": time.time(), "containerID": identity}
        self._event("Normal", "Started", f"Started container {self.name}")
        self._loop.on_exit(self.pid, self._on_exit)
        self._hook_post_start()
        self._begin_probes()
        self._changed()
        return True

    def _not_started(self, identity: str, why: str) -> None:
        now = time.time()
        self.state = {
            "state": "terminated",
            "reason": "StartError",
            "message": f"failed to start container {self.name!r}: {why}",
            "exitCode": 128,
            "startedAt": now,
            "finishedAt": now,
            "containerID": identity,
        }
        self.ready = self.started = False
        self._event("Warning", "Failed", f"Error: {self.state['message']}")
        self._changed()

    def _make_group(self) -> str:
        try:
            self._group.create()
        except OSError as e:
            self._group = cgroups.Group()
            return f"no control group: {e.strerror}"
        self._kills = self._group.oom_kills()
        return self._group.limit(int(self.spec.get("memory_bytes") or 0), int(self.spec.get("cpu_millis") or 0))

    def _forget_old_logs(self) -> None:
        """The current one and the one before are kept."""
        for suffix in ("", ".1"):
            try:
                os.unlink(self.log_path(self.restarts - 2) + suffix)
            except OSError:
                pass

    def _open_message(self) -> None:
        path = self.spec.get("message_file")
        if path:
            with open(path, "w"):
                os.chmod(path, 0o666)

    def attach(self, connection: socket.socket, asked: dict[str, Any]) -> bool:
        """False: it does not run."""
        if self._streams is None or not self.running:
            return False
        self._streams.attach(connection, asked)
        return True

    # How it ends

    def kill(self, grace_s: float, why: str = "") -> None:
        """PreStop hook, SIGTERM, and SIGKILL to the whole tree when the grace period is over. Again: a shorter one."""
        if not self.running:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.after(max(0.0, grace_s), self.kill_tree)
        if self.killing:
            return
        self.killing = True
        for probe in self._probes:
            if probe.kind != "readiness":
                probe.stop()
        self._event("Normal", "Killing", why or f"Stopping container {self.name}")
        hook = (self.spec.get("hooks") or {}).get("preStop")
        if grace_s > 0 and hook:
            self._hook(hook, "PreStop", self._terminate)
        else:
            self._terminate()

    def _terminate(self) -> None:
        if self.running:
            try:
                os.kill(self.pid, int(self.spec.get("stop_signal") or signal.SIGTERM))
            except OSError:
                pass

    def kill_tree(self) -> None:
        """Everybody of this container, at once."""
        if self.running:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except OSError:
                pass
        self._group.kill()
        marker = f"ONWARD_CONTAINER={self.spec['pod_uid']}/{self.name}".encode()
        for pid in linux.holders(marker):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass

    def _on_exit(self, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        oom = self._group.oom_kills() > self._kills
        for probe in self._probes:
            probe.stop()
        self._probes = []
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self.kill_tree()  # what it left behind ends with it, as with a container's first process
        self._loop.after(0.0, self.close_streams)
        code = 128 - code if code < 0 else code
        reason = "OOMKilled" if oom and code else "Completed" if code == 0 else "Error"
        self.state = {
            "state": "terminated",
            "exitCode": code,
            "reason": reason,
            "startedAt": self.state["startedAt"],
            "finishedAt": time.time(),
            "containerID": self.state["containerID"],
        }
        message = self._message(code)
        if message:
            self.state["message"] = message
        self.pid = 0
        self.ready = self.started = False
        self._changed()

    def close_streams(self) -> None:
        """When it has ended: nothing of what it wrote is left unread."""
        if self._streams is not None and not self.running:
            self._streams.end()
            self._streams = None

    def _message(self, code: int) -> str:
        text = ""
        path = self.spec.get("message_file")
        if path:
            try:
                with open(path, "rb") as f:
                    text = f.read(MESSAGE_BYTES).decode(errors="replace")
            except OSError:
                pass
        if not text and code and self.spec.get("message_from_log"):
            self.close_streams()
            text = logfile.tail_text(self.log_path(self.restarts))
        return text

    def remove(self) -> None:
        self._group.remove()

    # Probes and hooks

    def _begin_probes(self) -> None:
        given = self.spec.get("probes") or {}
        self.started = "startup" not in given
        self.ready = self.started and "readiness" not in given
        kinds = ["startup"] if "startup" in given else ["liveness", "readiness"]
        self._start_probes([k for k in kinds if k in given])

    def _start_probes(self, kinds: list[str]) -> None:
        for kind in kinds:
            spec = self.spec["probes"][kind]
            probe = probes.Probe(self._loop, kind, spec, lambda out, s=spec: self._run_probe(s, out), self._probed)  # type: ignore[misc]
            self._probes.append(probe)
            probe.begin()

    def _run_probe(self, spec: dict[str, Any], out: int) -> int:
        if "exec" in spec:
            return spawn.beside(self.spec, self._group, self.pid, list(spec["exec"]["command"]), out)
        return spawn.aside(lambda: probes.ask_network(spec, self._address), out)

    def _probed(self, probe: probes.Probe, ok: bool | None, text: str) -> None:
        """True or False when its threshold is reached; None for a failure before that."""
        if ok is not True:
            self._event("Warning", "Unhealthy", f"{probe.kind.capitalize()} probe failed: {text}")
        if ok is None:
            return
        if probe.kind == "readiness":
            if self.ready != ok:
                self.ready = ok
                self._changed()
        elif not ok:
            probe.stop()
            self.kill(
                float(probe._spec.get("terminationGracePeriodSeconds") or self.spec.get("grace_s") or 0),
                f"Container {self.name} failed {probe.kind} probe, will be restarted",
            )
        elif probe.kind == "startup":
            probe.stop()
            self.started = True
            given = self.spec.get("probes") or {}
            self.ready = "readiness" not in given
            self._start_probes([k for k in ("liveness", "readiness") if k in given])
            self._changed()

    def _hook_post_start(self) -> None:
        hook = (self.spec.get("hooks") or {}).get("postStart")
        if hook:
            self._hook(hook, "PostStart", lambda: None)

    def _hook(self, hook: dict[str, Any], name: str, then: Callable[[], None]) -> None:
        if "sleep" in hook:
            self._loop.after(float(hook["sleep"].get("seconds") or 0), then)
            return
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(write, True)
        try:
            pid = self._run_probe(hook, write)
        except (spawn.StartError, OSError) as e:
            os.close(read)
            self._hook_failed(name, str(e))
            then()
            return
        finally:
            os.close(write)

        def ended(status: int) -> None:
            if os.waitstatus_to_exitcode(status) != 0:
                try:
                    text = os.read(read, HOOK_OUTPUT).decode(errors="replace")
                except OSError:
                    text = ""
                self._hook_failed(name, f"exit code {os.waitstatus_to_exitcode(status)}: {text}")
            os.close(read)
            then()

        self._loop.on_exit(pid, ended)

    def _hook_failed(self, name: str, why: str) -> None:
        self._event("Warning", f"Failed{name}Hook", f"{name}Hook failed: {why}")
        if name == "PostStart":
            self.kill(float(self.spec.get("grace_s") or 0), f"FailedPostStartHook: container {self.name} is killed")
