"""What is done about faults: the cheapest policy that is configured, can cure them and has budget."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from onward.core.ends import restart, why_own_bug
from onward.core.facts import FaultReport, Stage
from onward.core.faults import (
    IDENTICAL_LIMIT,
    condemned,
    echoes_of_a_call,
    left_behind,
    open_incident,
    remember,
    too_often,
)
from onward.core.fence import fence_by
from onward.core.incident import describe
from onward.core.job import (
    STOP,
    Decision,
    Facts,
    Job,
    Phase,
    current,
    furthest,
    is_load,
    mend_s,
    next_generation,
    node_names,
    node_of,
    renewed,
    vacancy,
    vacant,
    without,
)
from onward.core.moving import given_up, nodes_to_leave, ranks_on, why_not
from onward.core.policy import Policy
from onward.core.saving import climb
from onward.core.words import counted, ranks_named

_WITH_NEW_PROCESSES = (Policy.RECOVER_IN_PLACE.value, Policy.RECOVER.value, Policy.ELASTIC.value)
PUZZLED = "looking for the cause"  # of a connection that broke: who is dead shows a moment later
NO_STEPS = "the failed script does not use the library, or had not begun"
UNTOLD = "untold"  # what a replacement needs to know of the time between two steps, only the dead one knew
CAUSE_S = 1.0
RETRY_LIMIT = 3  # redos of one step before a process is replaced instead


def on_faults(job: Job, facts: Facts, faults: tuple[FaultReport, ...], now: float) -> Decision:
    """What follows from faults that nobody has acted on yet."""
    known = echoes_of_a_call(job, faults) or left_behind(job, facts, faults)
    job = remember(job, faults)
    if known:
        return Decision(job)
    if job.ending == STOP:  # what breaks now breaks because all are told to end: that is no incident
        return Decision(_vacate(job, faults, now))
    job = _vacate(open_incident(job, faults, facts, now), faults, now)
    if job.switch is not None:
        job = replace(job, switch=None)  # a hard fault comes first; the stand-in stands by
    hopeless = _nothing_to_redo(job)
    if job.ending:
        return Decision(job)  # who is dead counts by what it had published
    if hopeless:
        return restart(job, now, hopeless)
    assert job.incident is not None
    bug = why_own_bug(job)
    if bug is not None:
        return climb(job, now, bug[1])  # a mended script can go on from what is saved
    untold = next((f for f in faults if f.kind == UNTOLD), None)
    if untold is not None:
        return climb(job, now, f"{job.incident.headline()}; {untold.text}")
    often = too_often(job, faults)
    if often is not None and (job.given_up or not nodes_to_leave(job, [often.rank])):
        return climb(job, now, f"rank {often.rank} {describe(often)} {IDENTICAL_LIMIT} times with no progress")
    return _pause(job, facts, now)


def _vacate(job: Job, faults: tuple[FaultReport, ...], now: float) -> Job:
    """The places of lost nodes are free for others."""
    lost = {node_of(job, f.rank) for f in faults if f.kind == "node"}
    if not lost:
        return job
    job = replace(job, places=without(job, lost), mend_until=now + job.limits.reschedule_s)
    return replace(job, waiting=vacancy(job))


def _nothing_to_redo(job: Job) -> str:
    """Why no rank holds anything yet that a step could be redone from; empty when some may."""
    match job.phase:
        case Phase.STARTING:
            return NO_STEPS
        case Phase.FORMING if job.agreement is None:
            return "the first group was still forming, so there is no step to redo"
        case Phase.FORMING if is_load(job):
            return "the state was still being loaded"
        case Phase.RUNNING if not job.begun:
            return "the first step had not begun, so there is no step to redo"
    return ""


def _pause(job: Job, facts: Facts, now: float) -> Decision:
    """Open the next generation: interrupt the living, replace the dead."""
    incident = job.incident
    assert incident is not None
    here = current(job, facts)
    dead = sorted(condemned(job) | {r for r, f in here.items() if f.stage is Stage.EXITED})
    if job.phase is Phase.PAUSING and not dead:
        return Decision(job)  # an echo of the first fault: its rank is on its way to the fence anyway
    step = furthest(facts)
    retries = job.retries_at[1] + 1 if job.retries_at[0] == step else 1
    job = replace(job, retries_at=(step, retries))
    if not dead and retries > RETRY_LIMIT:
        suspects = [f for f in incident.faults if job.incarnations[f.rank] == f.incarnation]
        dead = [f.rank for f in sorted(suspects, key=lambda f: f.retryable == "communication")][:1]
    leaving = nodes_to_leave(job, dead) if len(dead) < len(job.ranks) else frozenset()
    needed = why_not(job, facts, leaving, dead) if leaving else ""
    if needed:
        what = f"{node_names(leaving)} would be given up"
        return climb(job, now, f"{incident.headline()}; {what}, and {needed}")
    if leaving:
        job = given_up(job, leaving)
        dead = sorted({*dead, *ranks_on(job, leaving)})
    lost = sorted(r for r in dead if job.places and job.places[node_of(job, r)] is None)
    policy, why = _choose(job, tuple(dead), tuple(lost), leaving)
    if len(dead) == len(job.ranks):
        return restart(job, now, why)
    if policy not in (Policy.RETRY, Policy.RECOVER_IN_PLACE, Policy.RECOVER, Policy.ELASTIC):
        return climb(job, now, why)
    already = job.phase is Phase.PAUSING  # a fault during the pause changes who is replaced, not the generation
    new = replace(
        job,
        phase=Phase.PAUSING,
        generation=job.generation if already else next_generation(job),
        incarnations=renewed(job, dead),
        restarts_used=job.restarts_used + len(dead) - len(lost),
        moved=job.moved + len(lost),
        agreement=None,
        deadline=fence_by(job, now),
        mend_until=now + mend_s(job),
        waiting=job.waiting if vacant(job) else "",
        puzzled_until=now + CAUSE_S if why.endswith(PUZZLED) else 0.0,
        soft=False,
        incident=incident.decided(policy.value, why),
    )
    return Decision(new, (why,))


def _choose(
    job: Job, dead: tuple[int, ...], lost: tuple[int, ...], leaving: Collection[int] = ()
) -> tuple[Policy, str]:
    """The cheapest policy that is configured, can cure this and has budget."""
    assert job.incident is not None
    head = job.incident.headline()
    if leaving:
        tried = "restarting it in place has failed, so " if Policy.RECOVER_IN_PLACE in job.policies else ""
        head = f"{head}; {tried}{node_names(leaving)} {'is' if len(leaving) == 1 else 'are'} given up"
    if not dead:
        if job.incident.policy in _WITH_NEW_PROCESSES:  # the same incident: what it takes is more than a retry
            return Policy(job.incident.policy), f"{head}; forming the group once more"
        if Policy.RETRY in job.policies:
            return Policy.RETRY, f"{head}; redoing the step in place, no process ends"
        if all(f.retryable == "communication" for f in job.incident.faults):
            return Policy.RECOVER_IN_PLACE, f"{head}; {PUZZLED}"  # also where it is not configured: nothing is done yet
        if Policy.RECOVER_IN_PLACE not in job.policies:
            return Policy.EXIT, f"{head}; neither retry nor recover-in-place is configured"
        return Policy.EXIT, f"{head}; retry is not configured"
    ranks = ranks_named(dead)
    here = tuple(r for r in dead if r not in lost)
    if here and Policy.RECOVER_IN_PLACE not in job.policies:
        return Policy.EXIT, f"{head}; recover-in-place is not configured"
    if job.restarts_used + len(here) > job.limits.max_restarts:
        limit = counted(job.limits.max_restarts, "process restart")
        return Policy.EXIT, f"{head}; the limit of {limit} is used up"
    if len(dead) == len(job.ranks):
        return Policy.EXIT, f"{head}; no rank is left that holds the state"
    if lost and Policy.RECOVER not in job.policies:
        if Policy.ELASTIC in job.policies:
            return Policy.ELASTIC, f"{head}; the others keep their processes"
        return Policy.EXIT, f"{head}; recover is not configured"
    if lost:
        return Policy.RECOVER, f"{head}; another node takes over {ranks}, the others keep their processes"
    plural = "processes" if len(dead) > 1 else "process"
    return Policy.RECOVER_IN_PLACE, f"{head}; restarting the {plural} of {ranks} in place"
