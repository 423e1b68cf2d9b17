"""How a manager goes on with a job that it, or another before it, had in hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onward.core.faults import late_faults
from onward.core.fence import fenced
from onward.core.job import OVER, Facts, Job, Phase, forming_s, mend_s, next_generation, vacant, vacant_s
from onward.core.remedy import CAUSE_S, on_faults
from onward.core.switch import HEARD_S


def resumed(job: Job, now: float) -> Job:
    """The job as a new manager, or one that was cut off, goes on with it.

    The old manager's clock may have been another, and nobody could answer meanwhile: all waits begin again.
    """
    waits = {
        Phase.STARTING: vacant_s(job) if vacant(job) else job.limits.start_s,
        Phase.PAUSING: job.limits.pause_s + job.limits.steps_s,
        Phase.SAVING: job.limits.save_s,
        Phase.FORMING: forming_s(job),
    }
    deadline = now + waits.get(job.phase, 0.0) if job.deadline is not None else None
    incident = job.incident.rebased(now) if job.incident is not None else None
    puzzled = now + CAUSE_S if job.puzzled_until else 0.0
    if job.switch is not None:
        switch = replace(job.switch, until=now + job.limits.switch_s, settle_until=0.0, connect_until=0.0)
        job = replace(job, switch=replace(switch, heard_by=now + HEARD_S))
    return replace(job, deadline=deadline, mend_until=now + mend_s(job), puzzled_until=puzzled, incident=incident)


def inherited(last: Job, term: int, now: float) -> Job:
    """The job, as the manager of a new term takes it over from the newest record that it has heard of.

    The one before it may have gone a step further with nobody left to tell. What that step was to be called stays its
    name; who stands at the fence goes there once more, under a new one.
    """
    job = replace(last, term=term, floor=max(last.floor, last.generation) + 1)
    if job.phase is Phase.PAUSING:
        job = replace(job, generation=next_generation(job))
    return resumed(job, now)


def overtaken(job: Job, generation: int, ranks: Sequence[int], facts: Facts, now: float) -> Job:
    """The job, where `ranks` follow a generation that another manager had opened and this one knows nothing of.

    They stand at the fence and hear of nothing older any more. So all others go there too, for a newer one.
    """
    if job.phase in OVER or generation <= job.generation:
        return job
    job = replace(job, generation=generation)
    if job.phase is Phase.STARTING:
        return job
    if job.phase in (Phase.PAUSING, Phase.SAVING):
        return fenced(replace(job, phase=Phase.RUNNING), now)
    text = "was told to pause by a manager that is no more"
    return on_faults(job, facts, late_faults(job, facts, list(ranks), "stall", text), now).job
