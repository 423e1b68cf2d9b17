"""Giving up a node that answers: where a process cannot be restarted in its place, its ranks move to another node.

That is `recover` without `recover-in-place`; with it, what is left when it has failed, once in an incident. The node is
lost to the job as if it had vanished, with all its ranks; but its agent lives, and would be the first to take the place
again. So others come first. A pod is replaced, so another is waited for; elsewhere nobody need ever come, and a node
that stands there is better than none.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from onward.core.elastic import goes_on_with_fewer
from onward.core.facts import Stage
from onward.core.faults import IDENTICAL_LIMIT, times_seen
from onward.core.job import Facts, Job, current, node_of, vacancy, without
from onward.core.membership import Member, Outlook, Places, fill
from onward.core.policy import Policy

HOLDS_NOTHING = (Stage.STARTING, Stage.SETUP, Stage.READY, Stage.PARKED, Stage.EXITED)


def nodes_to_leave(job: Job, dead: Collection[int]) -> frozenset[int]:
    """Nodes that are to be given up because these ranks need new processes, and cannot have them in their place."""
    recovers = Policy.RECOVER in job.policies
    if len(job.places) < 2 or not (recovers or Policy.ELASTIC in job.policies):
        return frozenset()
    if Policy.RECOVER_IN_PLACE in job.policies:
        tried = _failed_in_place(job) if recovers and not job.given_up else set()
        dead = [r for r in dead if r in tried]
    return frozenset(node for r in dead if job.places[node := node_of(job, r)] is not None)


def _failed_in_place(job: Job) -> set[int]:
    """Ranks whose new process did not come up, or fails again and again."""
    faults = job.incident.faults if job.incident is not None else ()
    mine = [f for f in faults if f.incarnation == job.incarnations[f.rank]]
    return {f.rank for f in mine if f.kind == "start" or times_seen(job, f) > IDENTICAL_LIMIT}


def ranks_on(job: Job, nodes: Collection[int]) -> list[int]:
    """Those that take part."""
    return [r for r in job.ranks if node_of(job, r) in nodes]


def why_not(job: Job, facts: Facts, nodes: Collection[int], dead: Collection[int]) -> str:
    """Why these nodes cannot be given up; empty when they can."""
    here = current(job, facts)
    others = [r for r in job.ranks if r not in dead and node_of(job, r) not in nodes]
    if not any(r in here and here[r].stage not in HOLDS_NOTHING for r in others):
        return "nobody else holds the state"
    after = given_up(job, nodes)
    placed = {m.id for m in after.places if m is not None}
    stay = [any(m.id in placed or (m.id in after.given_up and not m.pod) for m in e.members) for e in job.voters]
    return "" if all(stay) else "nobody else would be left who may decide"


def given_up(job: Job, nodes: Collection[int]) -> Job:
    """Their places are free for others."""
    agents = tuple(m.id for i, m in enumerate(job.places) if i in nodes and m is not None)
    job = replace(job, places=without(job, nodes), given_up=(*job.given_up, *agents))
    return replace(job, waiting=vacancy(job))


def refilled(job: Job, outlook: Outlook, now: float) -> Places:
    """The places, with vacant ones given to agents that have none: to one that was given up only for want of others.

    Where the job goes on with fewer ranks at once, it does that first; then it is as good as any.
    """
    here = outlook.here
    places = fill(job.places, [m for m in here if m.id not in job.given_up], ahead=outlook.ahead)
    if goes_on_with_fewer(job):
        return places
    return fill(places, [m for m in here if m.id in job.given_up and (not m.pod or now >= job.mend_until)])


def why_left(job: Job, m: Member) -> str:
    """Why another is to come in the place of this agent; empty when it need not."""
    if m.id not in job.given_up or Policy.RECOVER not in job.policies or job.incident is None:
        return ""
    return f"{job.incident.headline()}, and it gets no new process in its place"
