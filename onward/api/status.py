"""The conditions of a job: five states that users know, and what stands before them.

The last condition is always the state. Conditions of onward's own (`GangScheduled`, `Degraded`, `Recovering`) stand
before it, so whoever looks at `.status.conditions[-1]` sees one of the five.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onward.api.job import Obj

RUNNING, RESTARTING, SUCCEEDED, FAILED = "Running", "Restarting", "Succeeded", "Failed"
STATES = ("Created", RUNNING, RESTARTING, SUCCEEDED, FAILED)


@dataclass(frozen=True)
class Condition:
    """One condition, without its times."""

    type: str
    reason: str
    message: str
    status: str = "True"


def update(
    before: Sequence[Mapping[str, Any]], state: Condition | None, extras: Iterable[Condition], now: str
) -> list[Obj]:
    """The conditions as they are from now on. `state` None: it stays what it was. Failed and Succeeded are final.

    A condition that says what it said keeps its times. One type stands once. Running and Restarting replace each other;
    the end of a job, or its suspension, sets Running to False.
    """
    known = {str(c.get("type")): dict(c) for c in before}
    order = [str(c.get("type")) for c in before]
    last = _state_of(order)
    if last in (FAILED, SUCCEEDED) and known[last].get("status") == "True":
        return [dict(c) for c in before]
    for extra in extras:
        known[extra.type] = _written(known.get(extra.type), extra, now)
        if extra.type not in order:
            order.append(extra.type)
    if state is not None:
        known[state.type] = _written(known.get(state.type), state, now)
        order = [t for t in order if t != state.type] + [state.type]
        last = state.type
        gone = {RUNNING: RESTARTING, RESTARTING: RUNNING}.get(state.type, "")
        order = [t for t in order if t != gone]
        if state.type not in (RUNNING, RESTARTING) and RUNNING in order:
            was = known[RUNNING]
            no = Condition(RUNNING, str(was.get("reason", "")), str(was.get("message", "")), "False")
            known[RUNNING] = _written(was, no, now)
    if last:
        order = [t for t in order if t != last] + [last]
    return [known[t] for t in order]


def state(conditions: Sequence[Mapping[str, Any]]) -> str:
    """The state that these conditions tell; empty: none yet."""
    return _state_of([str(c.get("type")) for c in conditions])


def _state_of(types: Sequence[str]) -> str:
    return next((t for t in reversed(types) if t in STATES), "")


def _written(old: Mapping[str, Any] | None, new: Condition, now: str) -> Obj:
    same = old is not None and old.get("status") == new.status
    if old is not None and same and old.get("reason") == new.reason and old.get("message") == new.message:
        return dict(old)
    since = str(old.get("lastTransitionTime") or now) if old is not None and same else now
    return {
        "type": new.type,
        "status": new.status,
        "lastTransitionTime": since,
        "lastUpdateTime": now,
        "message": new.message,
        "reason": new.reason,
    }
