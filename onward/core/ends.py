"""How an incident ends, and how a job does: all is well, everybody starts again, or there is no point in going on."""

from __future__ import annotations

from dataclasses import replace

from onward.core.facts import FaultReport
from onward.core.faults import (
    IDENTICAL_LIMIT,
    UNREACHED_LIMIT,
    ended_behind,
    first_seen,
    never_reached,
    own_bug,
    remember_unreached,
    times_seen,
)
from onward.core.job import RELOAD, Decision, Facts, Job, Phase, all_are, next_generation, node_of, vacancy
from onward.core.policy import Policy
from onward.core.words import all_ranks, counted

NOT_MADE_FOR_FEWER = "with fewer ranks the script did not come to its first step"
AGAIN = "restarting"  # stands before who starts again, in the decision that all do


def root_cause(job: Job) -> FaultReport | None:
    """Of what is going on now."""
    return job.incident.root_cause if job.incident is not None else None


def restart(job: Job, now: float, why: str, policy: str = Policy.EXIT.value) -> Decision:
    """The last rung: every rank starts again, within the budget, and loads the newest copy there is."""
    job = remember_unreached(job)
    incident = job.incident
    assert incident is not None
    verdict, short = why_not_again(job), bool(job.absent) and not job.begun
    tries = job.short_starts + 1 if short else 0
    if short and (job.rigid or tries == IDENTICAL_LIMIT or verdict) and not (verdict and verdict[2]):
        job = replace(job, absent=(), rigid=job.rigid or NOT_MADE_FOR_FEWER)  # it may be well with all of them
    elif verdict:
        return fail(job, now, verdict[0], f"{why}; {verdict[1]}" if verdict[2] else verdict[1])
    absent = _still_absent(job, policy)
    who = f"the {job.world_size - len(absent)} ranks that are here" if absent else all_ranks(job.world_size)
    text = f"{why}; {AGAIN} {who}"
    new = replace(
        job,
        phase=Phase.STARTING,
        through=False,
        generation=next_generation(job),
        incarnations=tuple(i + 1 for i in job.incarnations),
        attempt=job.attempt + 1,
        restarts_used=job.restarts_used + 1,
        begun=False,
        ending="",
        given_up=(),
        absent=absent,
        short_starts=tries,
        joining=(),
        arriving=(),
        switch=None,
        switched=(),
        past=(),
        puzzled_until=0.0,
        soft=False,
        agreement=None,
        deadline=None,
        waiting="",
        incident=incident.decided(policy, text).marked("pause", now),
        retries_at=(-1, 0),
        progress_step=max(job.progress_step, incident.step),
    )
    return Decision(replace(new, waiting=vacancy(new)), (text,))


def _still_absent(job: Job, policy: str) -> tuple[int, ...]:
    """Without whom the job begins again, as it has gone on without them: nobody is waited for twice.

    Who only prepares to join begins with the others, except where they begin from what is in their memory.
    """
    if len(job.places) - job.places.count(None) < job.limits.min_nodes:
        return ()
    return job.absent if policy == RELOAD else tuple(r for r in job.absent if job.places[node_of(job, r)] is None)


def why_not_again(job: Job) -> tuple[FaultReport, str, bool] | None:
    """Why the job must not be started again: whom it is down to, a sentence, and whether it goes with others."""
    assert job.incident is not None
    bug = why_own_bug(job)
    if bug is not None:
        return *bug, False
    if job.restarts_used >= job.limits.max_restarts:
        limit = counted(job.limits.max_restarts, "restart")
        return job.incident.root_cause, f"the limit of {limit} is used up", True
    worst = max(job.incident.faults, key=lambda f: times_seen(job, f))
    if times_seen(job, worst) >= IDENTICAL_LIMIT:
        return first_seen(job, worst), f"the same failure {IDENTICAL_LIMIT} times with no progress", False
    unreached = never_reached(job)
    if unreached is not None:
        return unreached, f"the ranks have not reached one another in {UNREACHED_LIMIT} starts", False
    return None


def why_own_bug(job: Job) -> tuple[FaultReport, str] | None:
    """An error of the script that no new process cures, when it was first seen, and a sentence about it."""
    assert job.incident is not None
    bug = own_bug(job, job.incident.faults)
    if bug is None:
        return None
    again = "came back" if times_seen(job, bug) >= 2 else "is raised by every rank"
    return first_seen(job, bug), f"the same error {again} at the same step: this is an error in the script"


def fail(job: Job, now: float, root: FaultReport | None, why: str) -> Decision:
    """The job is over: no rung is left."""
    closed = (job.incident.decided(Policy.EXIT.value, why).given_up(now),) if job.incident else ()
    last = closed[0].in_short() if closed else job.last
    new = replace(job, phase=Phase.FAILED, root_cause=root, reason=why, incident=None, last=last, deadline=None)
    return Decision(new, (why,), closed)


def all_ended_well(job: Job, facts: Facts) -> bool:
    """Every script has come to its end, all after the same step, and that step counts.

    Once all have said so, it does not matter any more how their processes go.
    """
    if job.phase is Phase.LEAVING:
        return all_are(job, facts, lambda f: not f.alive or (f.fault is not None and f.fault.kind == "hang"))
    return all_are(job, facts, lambda f: not f.alive and f.ended_well) and not ended_behind(job, facts)


def succeed(job: Job, now: float) -> Decision:
    """The job is over, and all is done."""
    return close(replace(job, phase=Phase.SUCCEEDED, deadline=None), now, "every rank ended well")


def stopped(job: Job, why: str) -> Decision:
    """The job is over, because it was told to end."""
    return Decision(replace(job, phase=Phase.STOPPED, deadline=None, reason=why), (why,))


def close(job: Job, now: float, *why: str) -> Decision:
    """All is well again: the incident, where there is one, is over."""
    if job.incident is None:
        return Decision(job, why)
    step = job.agreement.step + 1 if job.agreement else job.progress_step
    closed = job.incident.closed(now)
    new = replace(
        job,
        incident=None,
        given_up=(),
        last=closed.in_short(),
        deadline=None,
        progress_step=max(step, job.progress_step),
        repeats=() if step > job.progress_step else job.repeats,
    )
    return Decision(new, why, (closed,))
