"""What kubectl's columns say about a pod: how many containers are ready, the most telling word, restarts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onward.local.api.clock import age

Json = dict[str, Any]


@dataclass
class _Row:
    """What has been gathered so far."""

    ready: int = 0
    reason: str = ""
    restarts: int = 0
    last: str = ""

    def restarted(self, container: Json) -> None:
        self.restarts += container.get("restartCount", 0)
        ended = ((container.get("lastState") or {}).get("terminated") or {}).get("finishedAt") or ""
        self.last = max(self.last, ended)


def ready_status_restarts(body: Json) -> tuple[str, str, str]:
    """The columns READY, STATUS and RESTARTS."""
    spec, status = body.get("spec") or {}, body.get("status") or {}
    conditions = status.get("conditions") or ()
    sidecars = {each["name"] for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"}
    row = _Row(reason=status.get("reason") or status.get("phase", ""))
    if any(each["type"] == "PodScheduled" and each.get("reason") == "SchedulingGated" for each in conditions):
        row.reason = "SchedulingGated"
    initializing = _beginning(row, spec, status, sidecars)
    if not initializing or _is_true(conditions, "Initialized"):
        row.restarts, row.last = 0, ""
        for each in status.get("initContainerStatuses") or ():
            if each.get("name") in sidecars:
                row.restarted(each)
        _running(row, status, _is_true(conditions, "Ready"))
    if body["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            row.reason = "Unknown"
        elif status.get("phase") not in ("Succeeded", "Failed"):
            row.reason = "Terminating"
    restarts = f"{row.restarts} ({age(row.last)} ago)" if row.restarts and row.last else str(row.restarts)
    return f"{row.ready}/{len(spec.get('containers') or ()) + len(sidecars)}", row.reason, restarts


def completion(body: Json) -> Json | None:
    """The condition of the row of a pod that is over."""
    phase = (body.get("status") or {}).get("phase")
    text = {"Succeeded": "The pod has completed successfully.", "Failed": "The pod failed."}.get(phase or "")
    return {"type": "Completed", "status": "True", "reason": phase, "message": text} if text else None


def _is_true(conditions: Any, kind: str) -> bool:
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


def _beginning(row: _Row, spec: Json, status: Json, sidecars: set[str]) -> bool:
    """The init containers, up to the first that is not done. False: all are."""
    for index, each in enumerate(status.get("initContainerStatuses") or ()):
        row.restarted(each)
        state = each.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting") or {}
        if ended is not None and ended.get("exitCode", 0) == 0:
            continue
        if each.get("name") in sidecars and each.get("started"):
            row.ready += bool(each.get("ready"))
            continue
        if ended is not None:
            row.reason = f"Init:{_ending(ended)}"
        elif waiting.get("reason") not in (None, "", "PodInitializing"):
            row.reason = f"Init:{waiting['reason']}"
        else:
            row.reason = f"Init:{index}/{len(spec.get('initContainers') or ())}"
        return True
    return False


def _running(row: _Row, status: Json, ready: bool) -> None:
    running, error = False, ""
    for each in reversed(status.get("containerStatuses") or []):
        row.restarted(each)
        state = each.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting") or {}
        if waiting.get("reason"):
            row.reason = waiting["reason"]
        elif ended is not None:
            row.reason = _ending(ended)
            if ended.get("exitCode", 0) != 0:
                error = row.reason
        elif each.get("ready") and state.get("running") is not None:
            running = True
            row.ready += 1
    if row.reason == "Completed":
        if running and ready:
            row.reason = "Running"
        elif error or running:
            row.reason = error or "NotReady"


def _ending(ended: Json) -> str:
    code = f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"
    return str(ended.get("reason") or code)
