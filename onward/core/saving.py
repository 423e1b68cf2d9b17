"""Keeping a copy that survives before everybody ends: `dump` to disk, `reload` in memory, and a job that is to stop."""

from __future__ import annotations

from dataclasses import replace

from onward.core.agreement import Copy, NoAgreement, agree
from onward.core.ends import restart, stopped, why_not_again
from onward.core.facts import THROUGH, Scope, Stage
from onward.core.faults import condemned, needs_new_process
from onward.core.fence import copy_of, fenced
from onward.core.job import RELOAD, STOP, Decision, Facts, Job, Phase, current, does_without, is_load, node_of, vacant
from onward.core.policy import Policy


def climb(job: Job, now: float, why: str) -> Decision:
    """Nothing cheaper can cure this. Keep a copy that survives, where that is allowed, and start everybody again."""
    ending = _ending(job)
    if not ending:
        return restart(job, now, why)
    assert job.incident is not None
    what = "saving a surviving copy" if ending == Policy.DUMP.value else "keeping a surviving copy in memory"
    text = f"{why}; {what}"
    new = fenced(replace(job, ending=ending, incident=job.incident.decided(ending, text)), now)
    return Decision(new, (text,))


def _ending(job: Job) -> str:
    if job.ending or not job.library or not job.begun:
        return ""
    if Policy.DUMP in job.policies:
        return Policy.DUMP.value
    in_place = Policy.RETRY in job.policies or Policy.RECOVER_IN_PLACE in job.policies
    whole = not vacant(job)  # memory is lost with a node
    return RELOAD if in_place and whole and not why_not_again(job) else ""


def stop(job: Job, now: float) -> Decision:
    """The job is to end. Where a copy may be kept for the next start, it is."""
    if job.phase is Phase.SAVING:
        return Decision(replace(job, ending=STOP), ("the job ends when the copy is written",))
    held = job.phase in (Phase.PAUSING, Phase.RUNNING) or (job.phase is Phase.FORMING and not is_load(job))
    if Policy.DUMP in job.policies and job.library and job.begun and held:
        return Decision(fenced(replace(job, ending=STOP), now), ("the job is to end; saving the last committed step",))
    return Decision(replace(job, phase=Phase.STOPPED, ending=STOP, deadline=None, reason="stopped"))


def gather(job: Job, facts: Facts, now: float, late: bool = False) -> Decision:
    """Once the living stand at the fence, agree on the step to keep. The dead count by what they had published."""
    here = current(job, facts)
    dead = condemned(job) | {r for r, f in here.items() if f.fault is not None and needs_new_process(f.fault)}
    standing = {r: f for r, f in here.items() if f.stage is Stage.PAUSED and f.generation == job.generation}
    begun = (Stage.FORMED, Stage.READY, Stage.TRAINING, *THROUGH, Stage.PAUSED)  # what is known may be old news
    coming = [r for r, f in here.items() if r not in standing and r not in dead and f.stage in begun]
    fetching = [r for r in job.arriving if r not in dead and _is_fetching(job, r, here)]
    if (coming or fetching) and not late:
        return Decision(job)
    patience = job.incident.opened_at + job.limits.mend_s if job.incident is not None else now + job.limits.pause_s
    if coming and now < patience and all(here[r].progress.section for r in coming):
        return Decision(replace(job, deadline=patience))  # slowness is legal there
    able = {r: f for r, f in standing.items() if f.scope is not Scope.SETUP}
    copies = [
        copy_of(able[r], job.generation)
        if r in able
        else Copy(r, None, False, False, facts[r].local_steps, early=facts[r].early)
        if r in facts
        else Copy(r, None, False, False, ())
        for r in job.ranks
    ]
    outcome, left_out = agree(copies), frozenset[int]()
    if isinstance(outcome, NoAgreement) and able and job.ending != RELOAD and does_without(job, able.values()):
        left_out = frozenset(job.ranks) - able.keys()
        outcome = agree([c for c in copies if c.rank in able])
    if isinstance(outcome, NoAgreement):
        return not_saved(job, now, outcome.why)
    why = f"saving step {outcome.step}" if job.ending != RELOAD else f"keeping step {outcome.step} in memory"
    incident = job.incident.marked("pause", now).decided(job.incident.policy, why) if job.incident else None
    new = replace(
        job,
        phase=Phase.SAVING,
        agreement=outcome,
        absent=(*job.absent, *sorted(left_out)),
        # Some may have run collectives that others have still to come to: then all run them once more.
        between=any(f.between > 0 or f.scope is Scope.OUTSIDE for f in able.values())
        and any(f.begun < outcome.step for f in facts.values()),
        incident=incident,
        deadline=now + job.limits.save_s,
    )
    return Decision(new, (why,))


def _is_fetching(job: Job, rank: int, here: Facts) -> bool:
    """What is kept of it elsewhere is not on its new node yet."""
    if job.places[node_of(job, rank)] is None:
        return False
    f = here.get(rank)
    return f is None or (f.stage in (Stage.STARTING, Stage.SETUP, Stage.PARKED) and not f.local_steps)


def savers(job: Job, facts: Facts) -> dict[int, int]:
    """Which rank of each node copies the shared state: node -> rank. Only those who stand at the fence with it can."""
    assert job.agreement is not None
    chosen: dict[int, int] = {}
    for rank in sorted(job.agreement.sources):
        f = current(job, facts).get(rank)
        if f is not None and f.stage is Stage.PAUSED and f.generation == job.generation:
            chosen.setdefault(f.node, rank)
    return chosen


def while_saving(job: Job, facts: Facts, now: float) -> Decision:
    """All ranks end when the copy is safe, or cannot be had."""
    assert job.agreement is not None
    step, everybody = job.agreement.step, [facts[r] for r in job.ranks if r in facts]
    from_nodes = savers(job, facts)
    in_memory = (
        len(everybody) == len(job.ranks)
        and any(step in f.memory for f in everybody)
        and all(step in f.kept and (step in f.memory or f.node not in from_nodes) for f in everybody)
    )
    if in_memory if job.ending == RELOAD else any(step in f.disk for f in everybody):
        where = "is in memory" if job.ending == RELOAD else "is saved"
        if job.ending == STOP:
            return stopped(job, f"stopped; step {step} {where}")
        return restart(job, now, f"step {step} {where}", job.ending)
    failed = next((f.save_error for f in everybody if f.save_error), "")
    if failed:
        return not_saved(job, now, failed)
    if not from_nodes and not any(step in f.memory for f in everybody):
        return not_saved(job, now, "no rank is left that holds the state")
    return Decision(job)


def not_saved(job: Job, now: float, why: str) -> Decision:
    """The next rung."""
    if job.ending == STOP:
        return stopped(job, f"stopped; nothing was saved: {why}")
    return restart(job, now, f"no copy could be kept: {why}")
