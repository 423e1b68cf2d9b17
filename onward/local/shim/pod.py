"""The life of a pod: init containers in their order, sidecars beside them, then the containers; restarts with backoff;
the end. What is known is written to `state.json` after each change, and sent to whoever listens.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from onward.local.shim import cgroups
from onward.local.shim.container import Container
from onward.local.shim.loop import Loop, Timer

STABLE_S = 600.0  # a container that ran for so long starts its backoff anew
EVENTS_KEPT = 64


class Pod:
    """Reads `recipe.json` in its directory."""

    def __init__(self, loop: Loop, place: str, recipe: dict[str, Any], tell: Callable[[bytes], None]) -> None:
        self._loop, self._place, self._recipe, self._tell = loop, place, recipe, tell
        self.group = cgroups.from_words(recipe.get("cgroup"), int(recipe.get("cgroup_version") or 0))
        self._containers = [self._container(spec) for spec in recipe["containers"]]
        self._inits = [c for c in self._containers if c.spec.get("init")]
        self._mains = [c for c in self._containers if not c.spec.get("init")]
        self._stopping = False
        self._reason = self._message = ""
        self.done = False
        self._events: list[dict[str, Any]] = []
        self._sequence = 0
        self._dirty: Timer | None = None
        self._final: Callable[[], None] = lambda: None

    def _container(self, spec: dict[str, Any]) -> Container:
        spec["pod_uid"] = self._recipe["uid"]
        spec.setdefault("grace_s", self._recipe.get("grace_s", 30))
        return Container(
            self._loop,
            spec,
            self.group,
            self._place,
            self._recipe.get("address") or "127.0.0.1",
            self._changed,
            lambda kind, reason, text, n=str(spec["name"]): self._event(kind, reason, text, n),  # type: ignore[misc]
        )

    # What is known

    def facts(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "containers": {c.name: c.facts() for c in self._containers},
            "initialized": self._initialized(),
            "stopping": self._stopping,
            "done": self.done,
            "reason": self._reason,
            "message": self._message,
            "events": self._events,
        }

    def _event(self, kind: str, reason: str, text: str, container: str = "") -> None:
        self._sequence += 1
        self._events.append(
            {"seq": self._sequence, "type": kind, "reason": reason, "message": text, "container": container}
        )
        del self._events[:-EVENTS_KEPT]
        self._publish_soon()

    def _changed(self) -> None:
        """Something happened to a container. First what follows, then what is written down: one write for both."""
        self._loop.after(0.0, self._advance)
        self._publish_soon()

    def _publish_soon(self) -> None:
        if self._dirty is None:
            self._dirty = self._loop.after(0.002, self._publish)

    def _publish(self) -> None:
        self._dirty = None
        text = json.dumps(self.facts()).encode() + b"\n"
        temporary = f"{self._place}/state.json.new"
        try:
            with open(temporary, "wb") as f:
                f.write(text)
            os.rename(temporary, f"{self._place}/state.json")
        except OSError:
            pass  # a full disk: the agent still hears of it
        self._tell(text)

    # What follows

    def begin(self, final: Callable[[], None]) -> None:
        """`final` is called when all has ended and is written down."""
        self._final = final
        self._restore()
        memory, cpu = (int(self._recipe.get(name) or 0) for name in ("memory_bytes", "cpu_millis"))
        limits = self.group.limit(memory, cpu, as_one=False)
        if limits:
            self._event("Warning", "LimitsNotEnforced", f"the pod as a whole: {limits}")
        limit = self._recipe.get("deadline_s")
        if limit:
            left_s = float(self._recipe["started_at"]) + float(limit) - time.time()
            self._loop.after(max(0.0, left_s), self._deadline_over)
        self._advance()
        self._publish_soon()

    def _restore(self) -> None:
        try:
            with open(f"{self._place}/state.json") as f:
                before = json.load(f)
        except (OSError, ValueError):
            return
        for c in self._containers:
            if c.name in before["containers"]:
                c.restore(before["containers"][c.name])
        self._events = before.get("events") or []
        self._sequence = max((e["seq"] for e in self._events), default=0)

    def attach(self, connection: socket.socket, asked: dict[str, Any]) -> None:
        """`connection` wants to see what a container writes, or to type."""
        found = [c for c in self._containers if c.name == asked.get("container")]
        if not (found and found[0].attach(connection, asked)):
            connection.close()  # it has just ended

    def stop(self, grace_s: float, reason: str = "", message: str = "") -> None:
        """End it all. Asked again, the shorter grace period counts."""
        self._stopping = True
        self._reason, self._message = self._reason or reason, self._message or message
        for c in self._containers:
            if c.restart_at is not None:
                c.restart_at.cancel()
                c.restart_at = None
        self._grace_end = time.monotonic() + grace_s
        for c in self._mains + [i for i in self._inits if not i.spec.get("sidecar")]:
            c.kill(grace_s)
        if grace_s <= 0:
            for c in self._containers:
                c.kill(0)
        self._changed()

    def _deadline_over(self) -> None:
        if not self.done and not self._stopping:
            text = "Pod was active on the node longer than the specified deadline"
            self._event("Normal", "DeadlineExceeded", text)
            self.stop(float(self._recipe.get("grace_s") or 0), "DeadlineExceeded", text)

    def _initialized(self) -> bool:
        return all(c.started if c.spec.get("sidecar") else c.succeeded for c in self._inits) or any(
            c.restarts >= 0 for c in self._mains
        )

    def _advance(self) -> None:
        if self.done:
            return
        if self._stopping:
            self._advance_end()
            return
        for c in self._inits:
            if c.spec.get("sidecar") and c.restarts >= 0 and c.ended:
                self._again(c, always=True)
        if not any(c.restarts >= 0 for c in self._mains) and not self._advance_init():
            return
        for c in self._mains:
            if c.restarts < 0:
                c.begin()
            elif c.ended and c.restart_at is None and self._restarts(c):
                self._again(c)
        if all(c.ended and c.restart_at is None and not self._restarts(c) for c in self._mains):
            self._end()

    def _advance_init(self) -> bool:
        """True: all init containers are through."""
        for c in self._inits:
            if c.restarts < 0:
                c.begin()
                return False
            if c.spec.get("sidecar"):
                if not c.started:
                    return False
            elif c.ended and not c.succeeded:
                if self._restarts(c):
                    self._again(c)
                else:
                    self._end()
                return False
            elif not c.succeeded:
                return False
        return True

    def _restarts(self, c: Container) -> bool:
        """By a rule for its exit code, or its own policy, or that of the pod."""
        if c.ended and any(_applies(rule, c.state["exitCode"]) for rule in c.spec.get("restart_rules") or []):
            return True
        policy = c.spec.get("restart_policy") or self._recipe["restart_policy"]
        return policy == "Always" or (policy == "OnFailure" and not c.succeeded)

    def _again(self, c: Container, always: bool = False) -> None:
        """At once the first time; then 10, 20, 40 ... seconds after it ended, as the kubelet does."""
        if c.restart_at is not None or not c.ended:
            return
        base_s, cap_s = self._recipe.get("backoff_s") or (10.0, 300.0)
        if c.state["finishedAt"] - c.state["startedAt"] > STABLE_S:
            c.backoff_s = 0.0
        wait_s = c.backoff_s - (time.time() - c.state["finishedAt"])
        if wait_s > 0:
            held = {k: v for k, v in c.state.items() if k != "state"}
            name = f"{self._recipe['name']}_{self._recipe['namespace']}({self._recipe['uid']})"
            text = f"back-off {_words(c.backoff_s)} restarting failed container={c.name} pod={name}"
            c.last = held
            c.state = {**held, "state": "waiting", "reason": "CrashLoopBackOff", "message": text}
            self._event("Warning", "BackOff", f"Back-off restarting failed container {c.name} in pod {name}", c.name)
        c.backoff_s = min(cap_s, c.backoff_s * 2 if c.backoff_s else base_s)
        c.restart_at = self._loop.after(max(0.0, wait_s), lambda: self._begin_again(c, held if wait_s > 0 else None))
        self._publish_soon()

    def _begin_again(self, c: Container, held: dict[str, Any] | None) -> None:
        if self._stopping or self.done:
            return
        c.begin()
        if held is not None:
            c.last = held

    def _advance_end(self) -> None:
        """Sidecars end after the containers that they serve, in the reverse of their order."""
        if any(c.running for c in self._mains) or any(c.running for c in self._inits if not c.spec.get("sidecar")):
            return
        for c in reversed(self._inits):
            if c.running:
                c.kill(max(0.0, self._grace_end - time.monotonic()))
                return
        self._finish()

    def _end(self) -> None:
        """All its containers have ended for good; sidecars follow."""
        if any(c.running for c in self._containers):
            self._stopping = True
            self._grace_end = time.monotonic() + float(self._recipe.get("grace_s") or 0)
            self._advance_end()
        else:
            self._finish()

    def _finish(self) -> None:
        self.done = True
        for c in self._containers:
            if c.state["state"] == "waiting" and c.last is not None:
                c.state = {**c.last, "state": "terminated"}
            c.close_streams()
            c.remove()
        self._publish()
        self._final()


def _applies(rule: dict[str, Any], code: int) -> bool:
    return (code in (rule.get("values") or [])) == (rule.get("operator") == "In")


def _words(seconds: float) -> str:
    """As Go prints a duration: 10s, 1m20s."""
    if seconds < 60:
        return f"{seconds:g}s"
    return f"{int(seconds // 60)}m{int(seconds % 60)}s"
