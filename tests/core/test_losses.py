"""Which losses are forgiven, what they cost, and what is said: one row each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onward.core.jobs import Insight, NodeSeen, PodSeen, Record, Role, Seen, Wanted
from onward.core.losses import find_losses, judge

ROLES = (Role("Master", 1), Role("Worker", 2))
JOB = Wanted("ns", "job", "u", roles=ROLES)
PODS = tuple(
    PodSeen(place, f"job-{place[0].lower()}-{place[1]}", f"uid-{i}", 0, "Running", f"node-{i}")
    for i, place in enumerate(JOB.places())
)
NODES = {f"node-{i}": NodeSeen() for i in range(3)}
SEEN = Seen(pods=PODS, nodes=NODES, record=Record(launched=0, shape=JOB.shape), service=True, secret=True)
GOES_ON = Insight(phase="Running", recovers=True)
FAILED, LEFT_0 = "has failed because has pod failed.", "has failed because pod failed and remain retry times is 0."


def change(i: int, **what: object) -> Seen:
    pods = list(PODS)
    pods[i] = replace(pods[i], **what)  # type: ignore[arg-type]
    return replace(SEEN, pods=tuple(pods))


CRASHED = change(1, phase="Failed", exit_code=1)
KILLED = change(1, phase="Failed", exit_code=137)
EVICTED = change(1, phase="Failed", evicted=True, text="Evicted")
DELETED = replace(SEEN, pods=PODS[:2])
DELETING = change(2, deleting=100.0)
DISMISSED = change(2, phase="Failed", exit_code=143, deleting=100.0, dismissed=True)
ALL = replace(SEEN, pods=tuple(replace(p, phase="Failed", exit_code=1) for p in PODS))
LOST = replace(SEEN, nodes={**NODES, "node-1": NodeSeen(ready=False)})
NO_NODE = replace(SEEN, nodes={"node-0": NodeSeen(), "node-2": NodeSeen()})
FAULTY = replace(SEEN, nodes={**NODES, "node-1": NodeSeen(trouble="fan broken")})
ILL = replace(SEEN, nodes={**NODES, "node-1": NodeSeen(sub_health="slow")})


def used(seen: Seen, **record: int) -> Seen:
    return replace(seen, record=replace(seen.record, **record))  # type: ignore[arg-type]


def inside(seen: Seen, insight: Insight) -> Seen:
    return replace(seen, insight=insight)


RETRY, LIMIT = replace(JOB, retry_times=3), replace(JOB, backoff_limit=1)
RECOVER = replace(JOB, recovers=True, keeps_others=True)
BY_CODE = replace(JOB, roles=tuple(replace(r, restart="ExitCode") for r in ROLES))
GRACE = replace(JOB, fault_scheduling="grace")
OFF = replace(JOB, fault_scheduling="off", retry_times=3)
ONLY_PODS = replace(JOB, keeps_others=True)

# job, seen -> fatal, or (all pods, charged, counts as failure)
TABLE: dict[str, tuple[Wanted, Seen, str | tuple[bool, bool, bool]]] = {
    "a crash, no retry": (JOB, CRASHED, FAILED),
    "all crash at once, no retry": (JOB, ALL, FAILED),
    "all crash at once, retry": (RETRY, ALL, (True, True, True)),
    "a crash, retry": (RETRY, CRASHED, (True, True, True)),
    "a crash, retries used up": (RETRY, used(CRASHED, failures=3, charged=3), LEFT_0),
    "a crash, retry, fault-scheduling off": (OFF, CRASHED, FAILED),
    "deleted, fault-scheduling off": (OFF, DELETED, FAILED),
    "deleted": (JOB, DELETED, (True, True, False)),
    "being deleted": (JOB, DELETING, (True, True, False)),
    "deleted, and ended by the time it is seen": (JOB, DISMISSED, (True, True, False)),
    "evicted": (JOB, EVICTED, (True, True, False)),
    "deleted, limit not reached": (LIMIT, DELETED, (True, True, False)),
    "deleted, limit reached": (LIMIT, used(DELETED, charged=1), "specified backoff limit"),
    "a crash with a limit only": (LIMIT, CRASHED, FAILED),
    "deleted, fault-retry-times is the limit": (RETRY, used(DELETED, charged=3), "specified backoff limit"),
    "both limits, the smaller one": (
        replace(RETRY, backoff_limit=1), used(CRASHED, charged=1, failures=1), "specified backoff limit",
    ),
    "a permanent exit code": (BY_CODE, CRASHED, FAILED),
    "a retryable exit code": (BY_CODE, KILLED, (False, True, False)),
    "a retryable exit code, limit reached": (
        replace(BY_CODE, backoff_limit=2), used(KILLED, charged=2), "specified backoff limit",
    ),
    "pod-rescheduling: only the failed": (replace(ONLY_PODS, retry_times=2), CRASHED, (False, True, True)),
    "recover, nobody inside: only the lost": (RECOVER, DELETED, (False, True, False)),
    "recover, the manager goes on: free": (RECOVER, inside(DELETED, GOES_ON), (False, False, False)),
    "recover, a crashed agent, the manager goes on": (RECOVER, inside(CRASHED, GOES_ON), (False, False, False)),
    "recover, the limit is not asked when it goes on": (
        replace(RECOVER, backoff_limit=1), used(inside(DELETED, GOES_ON), charged=1), (False, False, False),
    ),
    "recover, over inside: all start again": (
        replace(RECOVER, retry_times=1), inside(ALL, Insight(phase="Failed", over=True, recovers=True)),
        (True, True, True),
    ),
    "recover, a crash, nobody inside, no limit": (RECOVER, CRASHED, (False, True, True)),
    "recover, crashes and crashes": (RECOVER, used(CRASHED, failures=3, charged=3), FAILED),
    "a node is lost, grace": (GRACE, LOST, (True, True, False)),
    "a node is gone, grace": (GRACE, NO_NODE, (True, True, False)),
    "a node has a fault, grace": (GRACE, FAULTY, (True, True, False)),
    "a node is lost, recover": (RECOVER, inside(LOST, GOES_ON), (False, False, False)),
    "a pod is unfit, by the manager's word": (
        RECOVER, inside(SEEN, replace(GOES_ON, unfit={"uid-2": "its device is broken"})), (False, False, False),
    ),
    "sub-health, forceExit": (
        replace(GRACE, leaves_sub_health="forceExit"), ILL, (True, True, False),
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", TABLE)
def test_what_a_loss_means(row: str) -> None:
    job, seen, wanted = TABLE[row]
    losses = find_losses(job, seen)
    assert losses
    verdict = judge(job, losses, seen, 1000.0)
    assert verdict.why
    if isinstance(wanted, str):
        assert verdict.fatal.endswith(wanted)
        assert verdict.fatal.startswith("Job ns/job has" if wanted != "specified backoff limit" else "Job job has")
    else:
        assert (verdict.everybody, verdict.charged, verdict.failure) == wanted, verdict
        assert verdict.message.startswith("Job ")


NO_LOSS: dict[str, tuple[Wanted, Seen]] = {
    "all run": (JOB, SEEN),
    "one has succeeded": (JOB, change(0, phase="Succeeded")),
    "not yet made": (JOB, used(replace(SEEN, pods=()), launched=-1)),
    "being replaced: counted already": (JOB, used(DELETED, wave=1)),
    "failed, and counted already": (JOB, used(CRASHED, wave=1, launched=0)),
    "done, and its pod is gone": (JOB, replace(DELETED, record=replace(DELETED.record, done=(("Worker", (1,)),)))),
    "a lost node where nobody asked for rescheduling": (JOB, LOST),
    "sub-health is ignored": (GRACE, ILL),
}


@pytest.mark.parametrize("row", NO_LOSS)
def test_what_is_no_loss(row: str) -> None:
    assert find_losses(*NO_LOSS[row]) == []


def test_once_all_pods_were_there_each_loss_is_a_new_one() -> None:
    """Also that of a pod which was made in an earlier wave. Until then it goes with what is being mended."""
    second = replace(PODS[2], wave=1)
    for lost in (CRASHED, LOST, change(1, phase="Failed", evicted=True)):
        pods = (*lost.pods[:2], second)
        launched = used(replace(lost, pods=pods), wave=1, launched=1)
        assert [loss.place for loss in find_losses(RECOVER, launched)] == [("Worker", 0)]
        assert find_losses(RECOVER, used(launched, launched=0)) == []


@pytest.mark.parametrize(("limit", "words"), [(1, "1 wave of lost pods was"), (2, "2 waves of lost pods were")])
def test_how_many_waves_were_allowed_is_said(limit: int, words: str) -> None:
    seen = used(DELETED, charged=limit)
    verdict = judge(replace(LIMIT, backoff_limit=limit), find_losses(LIMIT, seen), seen, 1000.0)
    assert verdict.why.endswith(f"; {words} allowed")


def test_the_seeds_message_counts_down() -> None:
    said = []
    for failures in range(3):
        seen = used(CRASHED, failures=failures, charged=failures)
        said.append(judge(RETRY, find_losses(RETRY, seen), seen, 0.0).message)
    assert said == [f"Job ns/job is unconditional retry job and remain retry times is <{n}>." for n in (3, 2, 1)]


def test_a_crash_waits_a_moment_for_the_managers_word() -> None:
    seen = replace(CRASHED, insight_until=50.0)
    held = judge(RECOVER, find_losses(RECOVER, seen), seen, 40.0)
    assert held.hold_until == 50.0
    assert not held.fatal
    nobody = replace(ALL, insight_until=50.0)
    assert judge(RECOVER, find_losses(RECOVER, nobody), nobody, 40.0).hold_until is None, "whom could it hear?"
    over = replace(seen, lately=Insight(phase="Failed", over=True, recovers=True))
    assert judge(RECOVER, find_losses(RECOVER, over), over, 40.0).everybody, "it has said that it is over"
    late = judge(RECOVER, find_losses(RECOVER, seen), seen, 51.0)
    assert late.hold_until is None


def test_a_pod_that_its_node_refuses_is_not_made_again_and_again_without_a_pause() -> None:
    seen = change(1, phase="Failed", evicted=True, refused=True, made_at=1000.0, text="OutOfcpu")
    losses = find_losses(JOB, seen)
    assert judge(JOB, losses, seen, 1001.0).hold_until == 1010.0
    verdict = judge(JOB, losses, seen, 1010.0)
    assert (verdict.hold_until, verdict.everybody, verdict.failure) == (None, True, False), "it has not failed itself"
    more = replace(seen, pods=(*seen.pods[:2], replace(seen.pods[2], phase="Failed", exit_code=1)))
    assert judge(JOB, find_losses(JOB, more), more, 1001.0).fatal, "nothing is waited for when there is more"


def test_a_pod_that_goes_with_the_manager_costs_nothing_when_it_was_well() -> None:
    """The way to the manager is cut because it was in that pod: another takes over, and nobody need wait for that."""
    seen = replace(DELETED, lately=GOES_ON, insight_until=50.0)
    verdict = judge(RECOVER, find_losses(RECOVER, seen), seen, 40.0)
    assert (verdict.hold_until, verdict.everybody, verdict.charged) == (None, False, False)
    late = judge(RECOVER, find_losses(RECOVER, seen), seen, 51.0)
    assert late.charged, "nobody has taken over"
