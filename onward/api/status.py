"""The status of a job, in the words that users know: five states, the conditions, and counts by role.

The last condition is always the state. Conditions of onward's own (`GangScheduled`, `Degraded`, `Recovering`) stand
before it, so whoever looks at `.status.conditions[-1]` sees one of the five.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onward.api.job import Job, Obj, Problem
from onward.api.pods import BACKUP, POD_TYPE, place_of

CREATED, RUNNING, RESTARTING, SUCCEEDED, FAILED = "Created", "Running", "Restarting", "Succeeded", "Failed"
STATES = (CREATED, RUNNING, RESTARTING, SUCCEEDED, FAILED)
GANG_SCHEDULED, DEGRADED, RECOVERING = "GangScheduled", "Degraded", "Recovering"
EXTRAS = (GANG_SCHEDULED, DEGRADED, RECOVERING)

# The reasons of abnormal conditions.
JOB_FAILED = "JobFailed"
JOB_RESTARTING = "jobRestarting"
SYNC_POD_GROUP_FAILED = "SyncPodGroupFailed"
POD_GROUP_NOT_INITIALIZED = "PodGroupNotInitialized"
POD_GROUP_PENDING = "PodGroupPending"
SYNC_SERVICE_FAILED = "SyncServiceFailed"
POD_CREATE_FAILED = "PodCreateFailed"
JOB_VALID_FAILED = "JobValidFailed"
# And of those that are as they should be.
JOB_CREATED, JOB_RUNNING, JOB_SUCCEEDED, JOB_SUSPENDED = "JobCreated", "JobRunning", "JobSucceeded", "JobSuspended"


@dataclass(frozen=True)
class Condition:
    """One condition, without its times."""

    type: str
    reason: str
    message: str
    status: str = "True"


# ------------------------------------------------------------------------------------------------ what states say


def created(job: Job) -> Condition:
    return Condition(CREATED, JOB_CREATED, f"Job {job.name} is create.")


def running(job: Job) -> Condition:
    return Condition(RUNNING, JOB_RUNNING, f"Job {job.key} is running.")


def succeeded(job: Job) -> Condition:
    return Condition(SUCCEEDED, JOB_SUCCEEDED, f"Job {job.key} successfully completed.")


def suspended(job: Job) -> Condition:
    return Condition(
        CREATED, JOB_SUSPENDED, f"Job {job.key} is suspended; it goes on when spec.runPolicy.suspend is false."
    )


def failed_pod(namespace: str, name: str) -> str:
    return f"Job {namespace}/{name} has failed because has pod failed."


def retrying(namespace: str, name: str, remaining: int) -> str:
    """The angle brackets belong to the text."""
    return f"Job {namespace}/{name} is unconditional retry job and remain retry times is <{remaining}>."


def no_retries_left(namespace: str, name: str) -> str:
    return f"Job {namespace}/{name} has failed because pod failed and remain retry times is 0."


def backoff_reached(name: str) -> str:
    return f"Job {name} has failed because it has reached the specified backoff limit"


def restarting_role(name: str, role: str) -> str:
    return f"Job {name} is restarting because {role} replica(s) failed."


def invalid(problems: Sequence[Problem]) -> Condition:
    """All problems in one sentence; it begins with the Reason of the first."""
    return Condition(FAILED, JOB_VALID_FAILED, "; ".join(str(problem) for problem in problems))


# ------------------------------------------------------------------------------------------------ conditions


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


# ------------------------------------------------------------------------------------------------ counts


def replica_statuses(job: Job, pods: Iterable[Mapping[str, Any]], over: str = "") -> dict[str, dict[str, int]]:
    """By role: active (they run), succeeded and failed; a count of none is left out. `over`: the job has ended so."""
    words = {"Running": "active", "Succeeded": "succeeded", "Failed": "failed"}
    found: dict[str, dict[str, int]] = {replica.name: {} for replica in job.replicas}
    roles = {replica.lower: replica.name for replica in job.replicas}
    for pod in pods:
        metadata = pod.get("metadata") or {}
        place, phase = place_of(pod), str((pod.get("status") or {}).get("phase"))
        if place is None or place[0] not in roles or phase not in words:
            continue
        if (metadata.get("annotations") or {}).get(POD_TYPE) == BACKUP:
            continue  # it holds no place yet
        if phase == "Failed" and metadata.get("deletionTimestamp"):
            continue
        word = "succeeded" if over == SUCCEEDED and phase == "Running" else words[phase]
        counts = found[roles[place[0]]]
        counts[word] = counts.get(word, 0) + 1
    return found
