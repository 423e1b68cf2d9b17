"""Why a job that was created does not run yet: the first of all that may be in its way. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from onward.core.jobs import CREATED, PodSeen, Seen, Wanted, Word

SETTLE_S = 3.0  # so long a scheduler may take to notice a new PodGroup before that is worth a word
UNSEEN_S = 15.0  # and so long to say something about pods that all are there
FAILURES = (("gang", "SyncPodGroupFailed"), ("service", "SyncServiceFailed"), ("pod", "PodCreateFailed"))


def just_created(job: Wanted) -> Word:
    return Word(CREATED, "JobCreated", f"Job {job.key} is created.")


def why_not_yet(
    job: Wanted, seen: Seen, here: Collection[PodSeen], started_at: float | None, ready: bool, now: float
) -> tuple[Word, float | None]:
    """What to say, and after how long there may be something else to say.

    `here`: the pods that hold a place. `ready`: what they need before they can be made is there.
    """
    created = just_created(job)
    for what, reason in FAILURES:
        if seen.errors.get(what):
            return Word(CREATED, reason, seen.errors[what]), None
    if job.gang and seen.gang is not None and not ready and seen.gang.phase == "":
        settled_s = now - max(seen.gang.made_at, started_at or now)
        if settled_s < SETTLE_S:
            return created, SETTLE_S - settled_s
        text = f"PodGroup of {job.key} is not initialized; is the scheduler running?"
        hint = f"kubectl get podgroup -n {job.namespace} shows what it says"
        return Word(CREATED, "PodGroupNotInitialized", f"{text} {hint}"), None
    if job.gang and seen.gang is not None and not ready and seen.gang.phase == "Pending":
        return _pending(job, seen.gang.text or "cluster resource is not enough"), None
    waiting = [p for p in here if p.phase == "Pending" and not p.node]
    if len(here) < job.total or not waiting:
        return created, None
    unplaced = next((p for p in waiting if p.text), None)
    if unplaced is None:
        return _unseen(created, waiting, now)
    if job.gang:
        return _pending(job, unplaced.text), None
    return replace(created, message=f"{created.message} Pod {unplaced.name} has no node: {unplaced.text}"), None


def _unseen(created: Word, waiting: list[PodSeen], now: float) -> tuple[Word, float | None]:
    """All pods are there, and no scheduler has said a word about those without a node."""
    silent_s = now - max(p.made_at for p in waiting)
    if silent_s < UNSEEN_S:
        return created, UNSEEN_S - silent_s
    names = " or ".join(sorted({p.scheduler for p in waiting}))
    text = f"Pod {waiting[0].name} has no node, and no scheduler has looked at it; "
    text += f"is the one called {names} running?"
    return replace(created, message=f"{created.message} {text}"), None


def _pending(job: Wanted, why: str) -> Word:
    return Word(CREATED, "PodGroupPending", f"PodGroup of {job.key} is pending: {why}")
