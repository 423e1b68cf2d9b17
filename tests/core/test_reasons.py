"""Why a job that was created does not run yet, in the words of its state."""

from __future__ import annotations

from dataclasses import replace

from cluster import CREATED, GOING, NEW, NOW, made, state
from test_losses import JOB, PODS

from onward.core.jobs import Gang, Record, Word
from onward.core.reasons import UNSEEN_S
from onward.core.reconcile import decide


def test_pods_wait_for_the_gang() -> None:
    there = replace(NEW, secret=True, service=True, record=Record(started_at=NOW), word=CREATED)
    young = decide(JOB, replace(there, gang=Gang("")), NOW + 1)
    assert state(young) == ("Created", "JobCreated")
    assert young.again_s is not None
    silent = decide(JOB, replace(there, gang=Gang("")), NOW + 60)
    assert state(silent) == ("Created", "PodGroupNotInitialized")
    pending = decide(JOB, replace(there, gang=Gang("Pending", "3 cpu missing")), NOW)
    assert state(pending) == ("Created", "PodGroupPending")
    assert pending.word is not None
    assert "3 cpu missing" in pending.word.message
    assert not made(young) + made(silent) + made(pending)
    assert len(made(decide(JOB, replace(there, gang=Gang("Inqueue")), NOW))) == 3
    assert len(made(decide(replace(JOB, gang=False), there, NOW))) == 3


def test_why_pods_that_were_made_find_no_place_is_said() -> None:
    text = "0/3 nodes are available: 3 node(s) didn't match node selector"
    pods = tuple(replace(p, phase="Pending", node="", text=text) for p in PODS)
    plan = decide(JOB, replace(GOING, word=CREATED, pods=pods, gang=Gang("Inqueue")), NOW)
    assert state(plan) == ("Created", "PodGroupPending")
    assert plan.word is not None
    assert plan.word.message.endswith(text)
    alone = decide(replace(JOB, gang=False), replace(GOING, word=CREATED, pods=pods), NOW)
    assert alone.word == replace(CREATED, message=f"{CREATED.message} Pod {PODS[0].name} has no node: {text}")
    placed = replace(GOING, word=plan.word, pods=tuple(replace(p, phase="Pending") for p in PODS))
    assert state(decide(JOB, placed, NOW)) == ("Created", "JobCreated")


def test_what_could_not_be_written_is_said() -> None:
    there = replace(NEW, secret=True, record=Record(started_at=NOW), word=CREATED)
    for what, reason in (("gang", "SyncPodGroupFailed"), ("service", "SyncServiceFailed"), ("pod", "PodCreateFailed")):
        plan = decide(JOB, replace(there, errors={what: "no"}), NOW)
        assert state(plan) == ("Created", reason)


def test_pods_that_no_scheduler_looks_at_are_told_of() -> None:
    waiting = tuple(replace(p, phase="Pending", node="", made_at=NOW, scheduler="nobody") for p in PODS)
    seen = replace(GOING, word=CREATED, pods=waiting, gang=Gang("Inqueue"))
    early = decide(JOB, seen, NOW + 1)
    assert (early.word, early.again_s) == (CREATED, UNSEEN_S - 1)
    late = decide(JOB, seen, NOW + UNSEEN_S)
    assert state(late) == ("Created", "JobCreated")
    assert late.word is not None
    assert "no scheduler has looked at it; is the one called nobody running?" in late.word.message
    looked_at = replace(seen, pods=tuple(replace(p, text="0/3 nodes are available") for p in waiting))
    assert state(decide(JOB, looked_at, NOW + UNSEEN_S)) == ("Created", "PodGroupPending")


def test_why_a_pod_that_replaces_another_has_no_node_is_said() -> None:
    waits = replace(PODS[2], wave=1, phase="Pending", node="", text="0/3 nodes are available: 3 Insufficient cpu.")
    word, record = Word("Restarting", "jobRestarting", "x"), replace(GOING.record, wave=1)
    seen = replace(GOING, pods=(*PODS[:2], waits), word=word, record=record)
    plan = decide(replace(JOB, keeps_others=True), seen, NOW)
    told = next(e for e in plan.extras if e.type == "GangScheduled")
    assert told.message == "2 of 3 pods have a node; 0/3 nodes are available: 3 Insufficient cpu."
