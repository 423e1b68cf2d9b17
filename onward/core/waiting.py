"""What a job waits for whose pods do not all run yet, in the words of its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onward.core.jobs import CREATED, Gang, Place, PodSeen, Record, Seen, Wanted, Word

SETTLE_S = 3.0  # so long a scheduler may take to notice a new PodGroup before that is worth a word
UNSEEN_S = 15.0  # and so long to say something about pods that all are there
FAILURES = (("gang", "SyncPodGroupFailed"), ("service", "SyncServiceFailed"), ("pod", "PodCreateFailed"))


def just_created(job: Wanted) -> Word:
    return Word(CREATED, "JobCreated", f"Job {job.key} is created.")


def waiting(
    job: Wanted, seen: Seen, here: Mapping[Place, PodSeen], record: Record, ready: bool, now: float
) -> tuple[Word, float | None]:
    """The word, and in how many seconds it may be another though nothing changes."""
    for what, reason in FAILURES:
        if seen.errors.get(what):
            return Word(CREATED, reason, seen.errors[what]), None
    settles_s = None
    if job.gang and seen.gang is not None and not ready:
        if seen.gang.phase == "Pending":
            return _pending(job, seen.gang.text or "cluster resource is not enough"), None
        if seen.gang.phase == "":
            settles_s = _settles_s(seen.gang, record, now)
            if settles_s <= 0:
                return _not_initialized(job), None
    unplaced = [p for p in here.values() if p.phase == "Pending" and not p.node]
    if len(here) < job.total or not unplaced:
        return just_created(job), settles_s
    told = next((p for p in unplaced if p.text), None)
    if told is None:
        word, unseen_s = _unseen(job, unplaced, now)
        return word, min((s for s in (settles_s, unseen_s) if s is not None), default=None)
    if job.gang:
        return _pending(job, told.text), settles_s
    return _and(just_created(job), f"Pod {told.name} has no node: {told.text}"), settles_s


def _settles_s(gang: Gang, record: Record, now: float) -> float:
    return SETTLE_S - (now - max(gang.made_at, record.started_at or now))


def _not_initialized(job: Wanted) -> Word:
    text = f"PodGroup of {job.key} is not initialized; is the scheduler running?"
    hint = f"kubectl get podgroup -n {job.namespace} shows what it says"
    return Word(CREATED, "PodGroupNotInitialized", f"{text} {hint}")


def _unseen(job: Wanted, unplaced: list[PodSeen], now: float) -> tuple[Word, float | None]:
    """All pods are there, and no scheduler has said a word about those without a node."""
    left_s = UNSEEN_S - (now - max(p.made_at for p in unplaced))
    if left_s > 0:
        return just_created(job), left_s
    names = " or ".join(sorted({p.scheduler for p in unplaced}))
    text = f"Pod {unplaced[0].name} has no node, and no scheduler has looked at it; "
    return _and(just_created(job), f"{text}is the one called {names} running?"), None


def _pending(job: Wanted, why: str) -> Word:
    return Word(CREATED, "PodGroupPending", f"PodGroup of {job.key} is pending: {why}")


def _and(word: Word, text: str) -> Word:
    return replace(word, message=f"{word.message} {text}")
