"""What follows when a wait has lasted too long. Each has a next step."""

from __future__ import annotations

from dataclasses import replace

from onward.core.elastic import shrink, start_short
from onward.core.ends import fail, restart, root_cause
from onward.core.facts import FaultReport, Stage
from onward.core.faults import late_faults, open_incident, remember
from onward.core.fence import fence_by, has_arrived
from onward.core.job import Decision, Facts, Job, Phase, current, nobody_came, vacant, vacant_s
from onward.core.moving import nodes_to_leave
from onward.core.phases import is_ready
from onward.core.remedy import on_faults
from onward.core.saving import climb, gather, not_saved
from onward.core.words import ranks_named


def on_deadline(job: Job, facts: Facts, now: float) -> Decision:
    """The time for what the phase waits for is over."""
    here = current(job, facts)
    match job.phase:
        case Phase.STARTING:
            if vacant(job):
                return start_short(job, now, nobody_came(job, vacant_s(job)))
            ready = {r for r, f in here.items() if f.library and f.stage is Stage.SETUP}
            late = [r for r in job.ranks if r not in ready]
            faults = late_faults(job, here, late, "start", "did not start")
            why = f"{ranks_named(late)} did not start within {job.limits.start_s:g} s of the others"
            return restart(open_incident(remember(job, faults), faults, facts, now), now, why)
        case Phase.PAUSING:
            return gather(job, facts, now, late=True) if job.ending else _pause_is_late(job, facts, now)
        case Phase.SAVING:
            return not_saved(job, now, f"it took longer than {job.limits.save_s:g} s")
        case Phase.FORMING:
            late = [r for r in job.ranks if r not in here or not is_ready(here[r], job.generation)]
            return on_faults(job, facts, _form_is_late(job, here, late), now)
    return Decision(replace(job, deadline=None))


def _form_is_late(job: Job, here: Facts, late: list[int]) -> tuple[FaultReport, ...]:
    """One that is stuck keeps all others from forming. Who is to blame shows at the fence of the next try.

    A parked process does not go to the fence; one that has now been called twice in vain is given up.
    """
    text = "did not join the new group in time"
    called = {(f.rank, f.incarnation) for f in job.incident.faults if f.kind == "stall"} if job.incident else set()
    deaf = [r for r in late if r in here and here[r].stage is Stage.PARKED and (r, here[r].incarnation) in called]
    if deaf:
        return late_faults(job, here, deaf, "hang", text)
    return late_faults(job, here, late, "stall", text)


def _pause_is_late(job: Job, facts: Facts, now: float) -> Decision:
    here = current(job, facts)
    late = [r for r in job.ranks if not has_arrived(here.get(r), job.generation)]
    if job.soft:  # one that hangs keeps all others from the end of their step: who it is shows at the fence
        why = "the step has not ended in time, so it is interrupted"
        return Decision(replace(job, soft=False, deadline=fence_by(job, now)), (why,))
    coming = [r for r in late if r not in here or here[r].stage in (Stage.STARTING, Stage.SETUP)]
    busy = [r for r in late if r not in coming and (here[r].progress.section or here[r].stage is Stage.AFTER)]
    if not late:
        return fail(job, now, root_cause(job), job.waiting or "nobody is late, and yet the job does not go on")
    after = any(here[r].stage is Stage.AFTER for r in busy)  # user code that nobody may hurry
    patience = job.mend_until if not after else max(job.mend_until, _opened_at(job, now) + job.limits.after_s)
    if now < patience and len(coming) + len(busy) == len(late):
        return Decision(replace(job, deadline=patience))
    hung = [r for r in late if r not in coming and (r not in busy or now >= patience)]
    if hung:
        return on_faults(job, facts, late_faults(job, here, hung, "hang", "did not reach the fence in time"), now)
    if vacant(job):
        return shrink(job, facts, now)
    why = f"did not come up in {job.limits.mend_s:g} s"
    faults = late_faults(job, here, coming, "start", why)
    if nodes_to_leave(open_incident(job, faults, facts, now), coming):
        return on_faults(job, facts, faults, now)
    return climb(job, now, f"the replacement of {ranks_named(coming)} {why}")


def _opened_at(job: Job, now: float) -> float:
    return job.incident.opened_at if job.incident is not None else now
