"""The recovery state machine of one job: what to want next, given what is known.

`advance(job, facts, now)` compares what the manager wants (`Job`) with what is (`facts`) and takes one step towards it,
again and again until nothing more follows. It is level-triggered: it needs no particular order of events, and calling
it twice changes nothing. Every wait is a deadline in the state; a deadline that passes leads to the next rung.

The parts: `phases` (what the facts allow), `faults` and `remedy` (what is wrong, and what is done about it),
`deadlines` (what took too long), `fence`, `saving`, `elastic`, `swap`, `ends`; `succession` is for managers that take
over.
"""

from __future__ import annotations

from dataclasses import replace

from onward.core.deadlines import on_deadline
from onward.core.elastic import goes_on_with_fewer, tend_absent
from onward.core.ends import all_ended_well, fail, root_cause, succeed
from onward.core.faults import new_faults
from onward.core.fence import fence_by
from onward.core.incident import Incident
from onward.core.job import OVER, STOP, Decision, Facts, Job, Phase, node_of, vacancy, vacant
from onward.core.membership import ALONE, Outlook, Vote, vote
from onward.core.moving import ranks_on, refilled
from onward.core.phases import while_forming, while_pausing, while_running, while_starting
from onward.core.remedy import on_faults
from onward.core.saving import gather, stop, while_saving
from onward.core.succession import resumed

NO_QUORUM = "NoQuorum"
QUIET_S = 1.0  # less than this without a majority is not worth a word


def quorum(job: Job, outlook: Outlook) -> Vote:
    """Whether anything may be decided. Who is silent may be alive, and others may be deciding there."""
    return vote(job.voters, outlook)


def advance(job: Job, facts: Facts, now: float, outlook: Outlook = ALONE) -> Decision:
    """Follow the facts until nothing more follows. Without a majority nothing is done that others would notice.

    When some agent has not been heard for a while, a deadline that passes is no evidence against its ranks.
    """
    verdict = quorum(job, outlook)
    if not verdict.enough and job.phase not in OVER and not all_ended_well(job, facts):
        return _wait_for_majority(job, verdict, outlook, now)
    why: list[str] = []
    closed: list[Incident] = []
    if job.waiting.startswith(NO_QUORUM):
        job = resumed(replace(job, waiting=vacancy(job)), now)
        why.append("a majority is here again")
    for _ in range(32):
        decision = _once(job, facts, now, outlook)
        why.extend(decision.why)
        closed.extend(decision.closed)
        formed = decision.job.phase is not job.phase and decision.job.phase in (Phase.FORMING, Phase.RUNNING)
        if decision.job == job or (job.voters and formed):
            return Decision(decision.job, tuple(why), tuple(closed))  # a majority must know before anything follows
        job = decision.job
    return Decision(job, (*why, "no fixed point after 32 rounds; waiting for the next fact"), tuple(closed))


def _wait_for_majority(job: Job, verdict: Vote, outlook: Outlook, now: float) -> Decision:
    """A moment without it is nothing to speak of: a new manager has none until its first orders are taken."""
    if outlook.lacking_s >= job.limits.quorum_s:
        return fail(job, now, root_cause(job), verdict.why)
    if outlook.lacking_s < QUIET_S or job.waiting == verdict.why:
        return Decision(job)
    return Decision(replace(job, waiting=verdict.why), (verdict.why,))


def _once(job: Job, facts: Facts, now: float, outlook: Outlook) -> Decision:
    if job.phase in OVER:
        return Decision(job)
    if all_ended_well(job, facts):
        return succeed(job, now)
    if outlook.stopping and job.ending != STOP:
        return stop(job, now)
    faults = new_faults(job, facts)
    if faults:
        return on_faults(job, facts, faults, now)
    if job.absent:
        decision = tend_absent(job, facts)
        if decision.job != job:
            return decision
    waited_for = bool(vacant(job)) or job.phase is not Phase.STARTING  # when all have started, others join
    if None in job.places and waited_for and job.phase in (Phase.STARTING, Phase.PAUSING, Phase.RUNNING):
        decision = _give_places(job, outlook, now)
        if decision.job != job:
            return decision
    decision = _follow(job, facts, now, outlook)
    if decision.job == job and job.deadline is not None and now >= job.deadline and not outlook.deaf:
        return on_deadline(job, facts, now)
    return decision


def _give_places(job: Job, outlook: Outlook, now: float) -> Decision:
    if job.phase is Phase.PAUSING and not job.ending and goes_on_with_fewer(job):
        return Decision(job)  # whoever comes joins when these train again
    places = refilled(job, outlook, now)
    new = [(i, m) for i, (m, old) in enumerate(zip(places, job.places, strict=True)) if m is not None and old is None]
    if not new:
        return Decision(job)
    again = {m.id: " again, as nobody else has come" for _, m in new if m.id in job.given_up}
    why = ", ".join(f"{m.name} takes the place of node {i}{again.get(m.id, '')}" for i, m in new)
    until = now + job.limits.mend_s
    deadline = fence_by(job, now) if job.phase is Phase.PAUSING else None
    waiting = job.waiting if None in places else ""
    if job.phase is Phase.RUNNING:
        return Decision(replace(job, places=places), (f"{why}, and joins when it is ready",))
    incident = job.incident.decided(job.incident.policy, why) if job.incident is not None else None
    if job.phase is Phase.STARTING:  # all are about to begin, so these begin with them
        job = replace(job, absent=tuple(r for r in job.absent if places[node_of(job, r)] is None))
    if job.phase is Phase.PAUSING:
        job = replace(job, arriving=(*job.arriving, *ranks_on(job, {i for i, _ in new})))
    job = replace(job, places=places, mend_until=until, deadline=deadline, waiting=waiting, incident=incident)
    return Decision(job, (why,))


def _follow(job: Job, facts: Facts, now: float, outlook: Outlook) -> Decision:
    """What the facts allow, deadlines apart."""
    match job.phase:
        case Phase.STARTING:
            return while_starting(job, facts, now, outlook)
        case Phase.PAUSING:
            return gather(job, facts, now) if job.ending else while_pausing(job, facts, now, outlook)
        case Phase.SAVING:
            return while_saving(job, facts, now)
        case Phase.FORMING:
            return while_forming(job, facts, now, outlook)
        case _:
            return while_running(job, facts, now, outlook)
