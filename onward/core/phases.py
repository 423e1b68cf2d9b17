"""What the facts allow in each phase of a generation, deadlines apart: from its start to the end of the script."""

from __future__ import annotations

from dataclasses import replace

from onward.core.agreement import Agreement, NoAgreement, Part, agree
from onward.core.checkpoints import choose_start
from onward.core.elastic import beginning_anew, grow, shrink, shrinks_at_once, start_short
from onward.core.ends import close, restart
from onward.core.facts import THROUGH, RankFacts, Scope, Stage
from onward.core.faults import has_ended, late_faults, open_incident
from onward.core.fence import copy_of, has_arrived
from onward.core.job import (
    NEEDS_BATCHES,
    UNKNOWN,
    Decision,
    Facts,
    Job,
    Phase,
    all_are,
    current,
    forming_s,
    next_generation,
    node_of,
    short_of,
    vacancy,
    vacant,
)
from onward.core.membership import Electorate, Outlook, council
from onward.core.policy import Policy
from onward.core.saving import climb
from onward.core.swap import just_swapped, look_for_switch, swap_when_settled
from onward.core.words import all_ranks, listed


def while_starting(job: Job, facts: Facts, now: float, outlook: Outlook) -> Decision:
    """When all ranks have come, their first group is formed."""
    if all_are(job, facts, lambda f: f.library and f.stage is Stage.SETUP):
        gen = next_generation(job)
        deadline = now + job.limits.form_s
        new = replace(job, phase=Phase.FORMING, generation=gen, agreement=None, deadline=deadline, library=True)
        new = replace(new, waiting="", voters=_with_newcomers(job, outlook))
        here = all_ranks(len(job.ranks)) if not job.absent else f"{len(job.ranks)} of {job.world_size} ranks"
        return Decision(new, (f"{here} came; forming generation {gen}",))
    if job.incident is not None and not job.library and all_are(job, facts, lambda f: f.alive and f.pid > 0):
        incident = job.incident.decided(job.incident.policy, "the script runs from its beginning")
        return close(replace(job, incident=incident), now)  # of a plain script no more can be known
    able = replace(job, library=True, rigid="") if vacant(job) and _are_first(job, facts) else job
    if able is not job and not short_of(able):  # who is missing has been waited for
        return start_short(able, now, f"node {listed(vacant(job))} did not come")
    if job.deadline is None and vacant(job):
        return start_short(job, now)
    if job.deadline is None and any(f.stage is Stage.SETUP for f in current(job, facts).values()):
        return Decision(replace(job, deadline=now + job.limits.start_s))
    return Decision(job)


def _are_first(job: Job, facts: Facts) -> bool:
    """A job that begins for the first time, with places that nobody holds, and all who are here use the library."""
    gone = vacant(job)
    here = {r: f for r, f in current(job, facts).items() if node_of(job, r) not in gone}
    all_here = len(here) == sum(node_of(job, r) not in gone for r in job.ranks)
    ready = all_here and all(f.library and f.stage is Stage.SETUP for f in here.values())
    return ready and job.attempt == 0 and job.rigid == UNKNOWN and Policy.ELASTIC in job.policies


def while_running(job: Job, facts: Facts, now: float, outlook: Outlook) -> Decision:
    """From the first step to the end of the scripts."""
    here = current(job, facts)
    if job.phase is Phase.RUNNING and all_are(job, facts, _is_through):
        through = not any(f.broke for f in here.values())
        return close(replace(job, phase=Phase.FINISHING, through=through), now, "all ranks are through the loop")
    if job.phase is Phase.FINISHING and all_are(job, facts, has_ended):
        return close(replace(job, phase=Phase.LEAVING), now)
    done = (*THROUGH, Stage.EXITED)
    settled = all((f.resumed and f.generation == job.generation) or f.stage in done for f in here.values())
    if job.incident is not None and len(here) == len(job.ranks) and settled:
        return close(job, now)
    if job.begun:
        if job.incident is not None:
            return Decision(job)
        return grow(job, facts, now) if job.absent else look_for_switch(job, facts, outlook, now)
    if any(f.resumed and f.generation == job.generation for f in here.values()):
        return Decision(replace(job, begun=True, rigid=_why_rigid(here)))  # decided by a manager whose word is lost
    ready = all_are(job, facts, lambda f: f.stage is Stage.READY and f.generation == job.generation)
    return _begin(job, facts, now) if ready else Decision(job)


def _is_through(f: RankFacts) -> bool:
    return f.stage in THROUGH or f.ended_well


def _begin(job: Job, facts: Facts, now: float) -> Decision:
    """Every rank stands before its first step: begin, or load what all of them can load."""
    here = current(job, facts)
    job = replace(job, rigid=_why_rigid(here))
    if job.absent and job.rigid:
        if job.incident is None:  # its first start: these have never been there
            job = open_incident(job, late_faults(job, here, list(job.absent), "start", "has not come"), facts, now)
        return restart(job, now, f"{len(here)} of {job.world_size} ranks cannot begin: {job.rigid}")
    step, why = choose_start({r: f.loadable for r, f in here.items()}, {r: f.partly for r, f in here.items()})
    incident = job.incident.decided(job.incident.policy, why) if job.incident else None
    if step < 0:
        return Decision(replace(job, begun=True, incident=incident), (why,))
    parts = {r: Part.LOAD if step in f.loadable else Part.RECEIVE for r, f in sorted(here.items())}
    agreement = Agreement(step, parts, tuple(r for r, part in parts.items() if part is Part.LOAD), why)
    new = replace(
        job,
        phase=Phase.FORMING,
        generation=next_generation(job),
        begun=True,
        agreement=agreement,
        between=False,
        incident=incident,
    )
    return Decision(replace(new, deadline=now + forming_s(new)), (why,))


def _why_rigid(here: Facts) -> str:
    return "" if all(f.elastic for f in here.values()) else NEEDS_BATCHES


def _is_behind(f: RankFacts, outlook: Outlook) -> bool:
    """Another agent keeps newer local state of the rank than its node has, which may be from an earlier stay."""
    return max(f.local_steps, default=-1) < outlook.kept.get(f.rank, 0)


def while_pausing(job: Job, facts: Facts, now: float, outlook: Outlook) -> Decision:
    """When all ranks stand at the fence, they agree on the step to go on from."""
    here = current(job, {**facts, **just_swapped(job, outlook)})
    missing = [r for r in job.ranks if not has_arrived(here.get(r), job.generation)]
    if job.soft and len(missing) < len(job.ranks) - len(job.joining):
        return Decision(replace(job, soft=False))  # one stands at the fence: the others cannot end a step without it
    gone = vacant(job)
    if gone and job.deadline != job.mend_until and all(node_of(job, r) in gone for r in missing):
        if shrinks_at_once(job) and job.waiting == vacancy(job):
            return shrink(job, facts, now)
        return Decision(replace(job, deadline=job.mend_until))  # only a node is waited for
    if missing:
        return Decision(job)
    if job.switch is not None and job.switch.swapping:
        return swap_when_settled(job, job.switch, here, outlook, now)
    on_its_way = {*job.switched, *outlook.kept} - set(job.joining)
    lacking = any(here[r].stage is Stage.PARKED and _is_behind(here[r], outlook) for r in on_its_way if r in here)
    if lacking and (job.deadline is None or now < job.deadline):
        return Decision(job)  # until it has what another node kept
    if job.puzzled_until:
        if now < job.puzzled_until:
            return Decision(replace(job, deadline=job.puzzled_until))
        assert job.incident is not None
        return climb(job, now, f"{job.incident.headline()}; retry is not configured")
    stuck = [f for f in here.values() if f.stage is Stage.PAUSED and f.scope is Scope.SETUP]
    if stuck:
        why = f"rank {stuck[0].rank} was in set-up, before its first step, so no step can be redone"
        return climb(job, now, why)
    outcome, joining = _agreed(job, here)
    if isinstance(outcome, NoAgreement):
        return restart(job, now, outcome.why)
    incident = job.incident.marked("mend", now) if job.incident else None
    if incident is not None:
        incident = incident.decided(incident.policy, outcome.why)
    new = replace(
        job,
        phase=Phase.FORMING,
        arriving=(),
        agreement=outcome,
        joining=joining,
        between=any(f.between > 0 or f.scope is Scope.OUTSIDE for f in here.values()),
        incident=incident,
        waiting="",
        deadline=now + job.limits.form_s,
        voters=_with_newcomers(job, outlook),
    )
    return Decision(new, (outcome.why,))


def _agreed(job: Job, here: Facts) -> tuple[Agreement | NoAgreement, tuple[int, ...]]:
    """On a step; and who comes to it without anything of its own."""

    def with_joining(joining: tuple[int, ...]) -> Agreement | NoAgreement:
        return agree([copy_of(f, job.generation, f.rank in joining) for f in here.values()])

    outcome = with_joining(job.joining)
    anew = tuple(r for r in beginning_anew(job, here) if r not in job.joining)
    if not isinstance(outcome, NoAgreement) or not anew:
        return outcome, job.joining
    joining = (*job.joining, *anew)
    return with_joining(joining), joining


def _newcomers(job: Job, outlook: Outlook) -> Electorate:
    return Electorate(council([m for m in job.places if m is not None]), outlook.seat, job.term)


def _with_newcomers(job: Job, outlook: Outlook) -> tuple[Electorate, ...]:
    """Those who decide while the next generation is formed: it may run, and nobody else may know.

    What this manager has formed before did not run, or it would know. What another one has formed may have.
    """
    if not job.voters:
        return ()
    first, *formed = job.voters
    new = _newcomers(job, outlook)
    kept = [e for e in formed if e.term != job.term]
    return (first, *kept) if new.members == first.members else (first, *kept, new)


def is_ready(f: RankFacts, generation: int) -> bool:
    """It is in the group of this generation."""
    return f.stage in (Stage.FORMED, Stage.TRAINING, *THROUGH) and f.generation == generation


def while_forming(job: Job, facts: Facts, now: float, outlook: Outlook) -> Decision:
    """When all ranks are in the new group, they run."""
    if all_are(job, facts, lambda f: is_ready(f, job.generation)):
        incident = job.incident.marked("form", now) if job.incident else None
        # A majority of each electorate has the record of this generation.
        voters = (_newcomers(job, outlook),) if job.voters else ()
        new = replace(job, phase=Phase.RUNNING, incident=incident, deadline=None, voters=voters, joining=(), soft=False)
        return Decision(replace(new, switched=(), past=()))
    return Decision(job)
