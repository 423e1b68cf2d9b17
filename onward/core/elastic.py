"""Elastic training: going on with fewer ranks while a node is missing, and with all when one has come."""

from __future__ import annotations

from dataclasses import replace

from onward.core.ends import fail, root_cause
from onward.core.facts import FaultReport, Stage
from onward.core.fence import called_softly, fence_by
from onward.core.job import (
    NEEDS_BATCHES,
    Decision,
    Facts,
    Job,
    current,
    does_without,
    nobody_came,
    node_of,
    renewed,
    short_of,
    vacancy,
    vacant,
    vacant_s,
    without,
)
from onward.core.policy import Policy
from onward.core.saving import climb
from onward.core.words import listed, ranks_named


def shrink(job: Job, facts: Facts, now: float) -> Decision:
    """Nobody takes the place of a lost node: go on with those who are left, if they can and are enough."""
    missing = f"node {listed(vacant(job))} is missing, and without `recover` nobody is waited for"
    why = missing if shrinks_at_once(job) else nobody_came(job, job.limits.reschedule_s)
    if Policy.ELASTIC not in job.policies:
        return climb(job, now, why)
    absent = _without_node(job)
    left = {r: f for r, f in current(job, facts).items() if r not in absent}
    unable = [r for r, f in left.items() if not f.elastic]
    if unable or not left:
        return climb(job, now, f"{why}; {NEEDS_BATCHES}")
    nodes = len(job.places) - job.places.count(None)
    if nodes < job.limits.min_nodes:
        waiting = f"at least {job.limits.min_nodes} nodes; {nodes} are left"
        if waiting == job.waiting:
            missing, least = f"node {listed(vacant(job))} is missing", job.limits.min_nodes
            return climb(job, now, f"{missing}; the job needs {least} nodes, and still only {nodes} are left")
        until = now + job.limits.quorum_s
        return Decision(replace(job, waiting=waiting, mend_until=until, deadline=until), (f"waiting for {waiting}",))
    text = f"{why}; going on with {len(left)} of {job.world_size} ranks and the same global batch"
    incident = job.incident.decided(Policy.ELASTIC.value, text) if job.incident is not None else None
    new = replace(
        job,
        absent=absent,
        given_up=(),
        joining=tuple(r for r in job.joining if r not in absent),
        waiting="",
        incident=incident,
        deadline=fence_by(job, now),
        mend_until=now + job.limits.mend_s,
    )
    return Decision(new, (text,))


def start_short(job: Job, now: float, why: str = "") -> Decision:
    """All start, and nodes are missing: with those who are here, if that will do, or when they have come.

    `why` nobody is waited for any longer. Who takes part in what follows is then as it is after a shrink.
    """
    lacking = short_of(job)
    if not lacking and (why or shrinks_at_once(job)):
        why = why or f"node {listed(vacant(job))} is missing, and without `recover` nobody is waited for"
        absent = _without_node(job)
        left = job.world_size - len(absent)
        text = f"{why}; starting with {left} of {job.world_size} ranks and the same global batch"
        incident = job.incident.decided(job.incident.policy, text) if job.incident is not None else None
        return Decision(replace(job, absent=absent, waiting="", deadline=None, incident=incident), (text,))
    told = lacking if Policy.ELASTIC in job.policies else ""
    if why:  # to start the others once more would not bring anybody
        return fail(job, now, root_cause(job), f"{why}; {told}" if told else why)
    waiting = f"{vacancy(job)}; {told}" if told else vacancy(job)
    return Decision(replace(job, waiting=waiting, deadline=now + vacant_s(job)), (f"waiting for {waiting}",))


def _without_node(job: Job) -> tuple[int, ...]:
    return tuple(r for r in range(job.world_size) if job.places[node_of(job, r)] is None)


def shrinks_at_once(job: Job) -> bool:
    """No pod was to be replaced first: whoever comes joins later."""
    return Policy.ELASTIC in job.policies and Policy.RECOVER not in job.policies


def goes_on_with_fewer(job: Job) -> bool:
    """Nobody is waited for, not even one who is here: to get ready takes time, in which the others can train."""
    return shrinks_at_once(job) and len(job.places) - job.places.count(None) >= job.limits.min_nodes


def beginning_anew(job: Job, here: Facts) -> tuple[int, ...]:
    """New processes that need nothing of what the ones before them knew alone: random numbers are the micro-batch's."""
    new = tuple(r for r, f in here.items() if f.stage is Stage.PARKED)
    return new if does_without(job, (f for r, f in here.items() if r not in new)) else ()


def tend_absent(job: Job, facts: Facts) -> Decision:
    """Who prepares to take an absent place may fail without anybody else being disturbed."""
    here = [facts[r] for r in job.absent if r in facts and facts[r].incarnation == job.incarnations[r]]
    lost = {node_of(job, f.rank) for f in here if f.fault is not None and f.fault.kind == "node"}
    if lost & {i for i, m in enumerate(job.places) if m is not None}:
        why = f"node {listed(sorted(lost))} was lost before it could join"
        return Decision(replace(job, places=without(job, lost)), (why,))
    dead = [f.rank for f in here if f.stage is Stage.EXITED and node_of(job, f.rank) not in lost]
    if not dead:
        return Decision(job)
    new = replace(job, incarnations=renewed(job, dead), moved=job.moved + len(dead))
    return Decision(new, (f"{ranks_named(dead)} ended before joining, and will be started again",))


def grow(job: Job, facts: Facts, now: float) -> Decision:
    """When the processes of a whole node stand ready to take absent places, they join at the end of a step."""
    ready: list[int] = []
    for node, member in enumerate(job.places):
        ranks = [r for r in job.absent if node_of(job, r) == node]
        found = [facts[r] for r in ranks if r in facts and facts[r].incarnation == job.incarnations[r]]
        if member is not None and ranks and len(found) == len(ranks) and all(f.stage is Stage.PARKED for f in found):
            ready += ranks
    if not ready:
        return Decision(job)
    back = ", ".join(f"node {n}" for n in sorted({node_of(job, r) for r in ready}))
    fault = FaultReport("join", ready[0], job.incarnations[ready[0]], text=f"{back} is ready", at=now)
    why = f"{back} is ready; {ranks_named(ready)} to join at the end of the step"
    new = called_softly(job, facts, fault, Policy.ELASTIC.value, why, now)
    left = tuple(r for r in job.absent if r not in ready)
    return Decision(replace(new, absent=left, joining=tuple(ready)), (why,))
