"""The status of a PodGroup (scheduling.volcano.sh/v1beta1), in Volcano's words. Pure.

Pending: known, and the cluster or its queue has no room for it. Inqueue: there is room, so its pods may be made, and
are placed when all fit. Running: as many as it needs have nodes. Unknown: it was running, and some are missing now.
Completed: all have done their work. `Inqueue` is always written before the first of its pods is bound: pods with nodes
in a group that is Inqueue were left by a scheduler that died in between, and are completed or released.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onward.core.quantity import write

PENDING, INQUEUE, RUNNING, UNKNOWN, COMPLETED = "Pending", "Inqueue", "Running", "Unknown", "Completed"
STARTED = (RUNNING, UNKNOWN)
UNSCHEDULABLE, SCHEDULED = "Unschedulable", "Scheduled"
READY = "tasks in gang are ready to be scheduled"
OVERCOMMIT = 1.2  # as much more than the cluster has may be waiting with its pods made, as in Volcano


@dataclass(frozen=True)
class Census:
    """The pods of a group, counted."""

    pending: int = 0
    held: int = 0  # have a node and have not ended
    running: int = 0
    succeeded: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        return self.pending + self.held + self.succeeded + self.failed


def admit(minimum: Mapping[str, int], total: Mapping[str, int], used: Mapping[str, int]) -> str:
    """Why a group that says what it needs in all is not let in; empty: it is."""
    never = [n for n, want in sorted(minimum.items()) if want > total.get(n, 0) * OVERCOMMIT]
    if never:
        listed = ", ".join(f"{n} {write(n, minimum[n])} of {write(n, total.get(n, 0))}" for n in never)
        return f"the cluster is too small: {listed}"
    left = {name: round(total.get(name, 0) * OVERCOMMIT) - used.get(name, 0) for name in minimum}
    short = [
        f"{name} {write(name, want)} of {write(name, max(0, total.get(name, 0) - used.get(name, 0)))}"
        for name, want in sorted(minimum.items())
        if want > left[name]
    ]
    return f"the cluster has too little left: {', '.join(short)}" if short else ""


def begun(old: str, held: int) -> bool:
    """Whether a gang in this phase is completed pod by pod. One that has lost all its pods begins anew; pods with nodes
    in one that we never let in are not our doing.
    """
    return held > 0 and old != INQUEUE


def phase(old: str, census: Census, min_member: int, refused: str) -> str:
    """`refused`: why it is not let in, while it waits."""
    if census.total and census.succeeded == census.total and census.succeeded >= min_member:
        return COMPLETED
    if census.held + census.succeeded >= min_member and census.held + census.succeeded > 0:
        return RUNNING
    if begun(old, census.held):
        return UNKNOWN
    if old == INQUEUE or not refused:
        return INQUEUE
    return PENDING


def condition(kind: str, reason: str, message: str, at: str, transition: str, status: str = "True") -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "transitionID": transition,
        "lastTransitionTime": at,
        "reason": reason,
        "message": message,
    }


def not_ready(census: Census, min_member: int, could: int, why: str) -> str:
    """`3/8 tasks in gang unschedulable: pod group is not ready, 8 Pending, 8 minAvailable; ...`"""
    short = max(0, min_member - could)
    if not census.total:  # nobody makes them before it is let in
        text = f"pod group is not ready, 0 of {min_member} pods are there"
        return f"{text}; {why}" if why else text
    text = f"{short}/{census.total} tasks in gang unschedulable: pod group is not ready, "
    text += f"{census.pending} Pending, {min_member} minAvailable"
    return f"{text}; {why}" if why else text


def conditions(old: Sequence[Mapping[str, Any]], new: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The new one last; the other one is no longer true. The same thing said again keeps its time."""
    kept = [dict(each) for each in old]
    if new is None:
        return kept
    for each in kept:
        if all(each.get(key) == new[key] for key in ("type", "status", "reason", "message")):
            return kept
    others = [each for each in kept if each.get("type") != new["type"]]
    for each in others:
        if each.get("type") in (UNSCHEDULABLE, SCHEDULED) and each.get("status") == "True":
            each |= {"status": "False", "lastTransitionTime": new["lastTransitionTime"]}
    return [*others, dict(new)]
