"""The fence: where all ranks of a job meet before its next generation is formed, and what they bring along."""

from __future__ import annotations

from dataclasses import replace

from onward.core.agreement import Copy
from onward.core.facts import FaultReport, RankFacts, Stage
from onward.core.faults import open_incident
from onward.core.job import Facts, Job, Phase, next_generation


def fence_by(job: Job, now: float) -> float:
    """When everybody who is called now should be there."""
    return now + job.limits.pause_s + job.limits.steps_s


def fenced(job: Job, now: float) -> Job:
    """Everybody who lives goes to the fence. During a pause they are on their way already."""
    return replace(
        job,
        phase=Phase.PAUSING,
        generation=job.generation if job.phase is Phase.PAUSING else next_generation(job),
        puzzled_until=0.0,
        agreement=None,
        deadline=fence_by(job, now),
    )


def called_softly(job: Job, facts: Facts, fault: FaultReport, policy: str, why: str, now: float) -> Job:
    """Everybody goes to the fence at the end of a step, for something that is no failure."""
    job = open_incident(job, (fault,), facts, now)
    assert job.incident is not None
    return replace(
        job,
        phase=Phase.PAUSING,
        generation=next_generation(job),
        soft=True,
        agreement=None,
        incident=job.incident.decided(policy, why),
        deadline=fence_by(job, now),
        mend_until=now + job.limits.mend_s,
    )


def has_arrived(f: RankFacts | None, generation: int) -> bool:
    """It stands at the fence of this generation, or has yet to be given its state."""
    if f is None:
        return False
    return f.stage is Stage.PARKED or (f.stage is Stage.PAUSED and f.generation == generation)


def copy_of(f: RankFacts, generation: int, fresh: bool = False) -> Copy:
    """What a rank that has arrived holds."""
    follows = f.step >= 0 and f.generation == generation  # what it holds counts at the fence it had followed to
    if f.stage is Stage.PARKED and not follows:
        return Copy(f.rank, None, False, False, f.local_steps, fresh=fresh, joined=f.joined, early=f.early)
    return Copy(
        f.rank,
        f.step,
        f.clean,
        f.undo,
        f.local_steps,
        light=f.light,
        joined=f.joined,
        withheld=f.withheld,
        early=f.early,
    )
