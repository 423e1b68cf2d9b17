"""The recovery state machine of one job: what to want next, given what is known.

`advance(job, facts, now)` compares what the manager wants (`Job`) with what is (`facts`) and takes one step towards it,
again and again until nothing more follows. It is level-triggered: it needs no particular order of events, and calling
it twice changes nothing. Every wait is a deadline in the state; a deadline that passes leads to the next rung.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from onward.core.agreement import Agreement, Copy, NoAgreement, agree
from onward.core.facts import FaultReport, RankFacts, Scope, Stage
from onward.core.incident import Incident, describe
from onward.core.policy import Policy

IDENTICAL_LIMIT = 3  # the same failure with no step in between
EXIT_AT, LATE_AT = -1.0, -2.0  # stand for the time of faults that nobody reported
RETRY_LIMIT = 3  # redos of one step before a process is replaced instead


class Phase(str, Enum):
    """In the order in which a generation goes through them."""

    STARTING = "Starting"
    PAUSING = "Pausing"
    FORMING = "Forming"
    RUNNING = "Running"
    FINISHING = "Finishing"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True)
class Limits:
    """Deadlines in seconds. Each has a next step; none is infinite by accident."""

    pause_s: float = 5.0  # for a rank to reach the fence, on top of what its steps take
    mend_s: float = 600.0  # for a replacement to run the script up to its first step
    form_s: float = 15.0  # for groups and state
    start_s: float = 1800.0  # for a rank that the others wait for before their first step; torch's own default
    max_restarts: int = 32767
    steps_s: float = 0.0  # measured: how long a rank may legally take to reach the fence


@dataclass(frozen=True)
class Repeat:
    """How often one failure has come back with no step in between. Many ranks that fail alike at once are one."""

    signature: tuple[str, int, str]
    count: int
    generation: int  # in which it was last seen
    ranks: tuple[int, ...]  # that failed so in it


@dataclass(frozen=True)
class Job:
    """What the manager wants. Small and complete: a copy of it is enough to go on elsewhere."""

    world_size: int
    policies: tuple[Policy, ...]
    limits: Limits = field(default_factory=Limits)
    term: int = 1
    phase: Phase = Phase.STARTING
    generation: int = 0
    incarnations: tuple[int, ...] = ()  # wanted, by rank
    attempt: int = 0  # restarts of the whole job
    library: bool = False  # its script has been seen to use the library
    restarts_used: int = 0
    agreement: Agreement | None = None
    between: bool = False  # some rank stands in a collective between steps, or has run some since its last commit
    incident: Incident | None = None
    incidents: int = 0
    deadline: float | None = None
    retries_at: tuple[int, int] = (-1, 0)  # (step, redos of it)
    repeats: tuple[Repeat, ...] = ()  # failures since the last progress
    handled: tuple[tuple[int, int, float], ...] = ()  # fault reports already acted on: (rank, incarnation, at)
    progress_step: int = -1  # furthest step that all had committed when the last incident closed
    root_cause: FaultReport | None = None
    reason: str = ""


@dataclass(frozen=True)
class Decision:
    job: Job
    why: tuple[str, ...] = ()
    closed: tuple[Incident, ...] = ()


Facts = Mapping[int, RankFacts]


def new_job(world_size: int, policies: tuple[Policy, ...], limits: Limits) -> Job:
    return Job(world_size=world_size, policies=policies, limits=limits, incarnations=(1,) * world_size)


def age(job: Job) -> tuple[int, ...]:
    """Larger for the newer of two records of one job. Within a generation the phases follow each other in order."""
    return (job.term, job.generation, job.attempt, job.incidents, job.restarts_used, tuple(Phase).index(job.phase))


def resumed(job: Job, now: float) -> Job:
    """The job as a new manager, or one that was cut off, goes on with it.

    The old manager's clock may have been another, and nobody could answer meanwhile: all waits begin again.
    """
    waits = {
        Phase.STARTING: job.limits.start_s,
        Phase.PAUSING: job.limits.pause_s + job.limits.steps_s,
        Phase.FORMING: job.limits.form_s,
    }
    deadline = now + waits.get(job.phase, 0.0) if job.deadline is not None else None
    return replace(job, deadline=deadline, incident=job.incident.rebased(now) if job.incident is not None else None)


def advance(job: Job, facts: Facts, now: float, deaf: bool = False) -> Decision:
    """Follow the facts until nothing more follows.

    Deaf: some agent has not been heard for a while. Then a deadline that passes is no evidence against its ranks.
    """
    why: list[str] = []
    closed: list[Incident] = []
    for _ in range(32):
        decision = _once(job, facts, now, deaf)
        why.extend(decision.why)
        closed.extend(decision.closed)
        if decision.job == job:
            return Decision(job, tuple(why), tuple(closed))
        job = decision.job
    return Decision(job, (*why, "no fixed point after 32 rounds; waiting for the next fact"), tuple(closed))


def _once(job: Job, facts: Facts, now: float, deaf: bool) -> Decision:
    if job.phase in (Phase.SUCCEEDED, Phase.FAILED):
        return Decision(job)
    if _all(job, facts, lambda f: f.stage is Stage.EXITED and f.exit_code == 0):
        return _succeed(job, now)
    faults = new_faults(job, facts)
    if faults:
        return _on_faults(job, facts, faults, now)
    decision = _follow(job, facts, now)
    if decision.job == job and job.deadline is not None and now >= job.deadline and not deaf:
        return _on_deadline(job, facts, now)
    return decision


def _follow(job: Job, facts: Facts, now: float) -> Decision:
    """What the facts allow, deadlines apart."""
    match job.phase:
        case Phase.STARTING:
            return _starting(job, facts, now)
        case Phase.PAUSING:
            return _pausing(job, facts, now)
        case Phase.FORMING:
            return _forming(job, facts, now)
        case _:
            return _running(job, facts, now)


def current(job: Job, facts: Facts) -> dict[int, RankFacts]:
    """Facts of the incarnations that are wanted; anything else is the past or not there yet."""
    return {r: f for r, f in facts.items() if 0 <= r < job.world_size and f.incarnation == job.incarnations[r]}


def _all(job: Job, facts: Facts, test: object) -> bool:
    now_here = current(job, facts)
    return len(now_here) == job.world_size and all(test(f) for f in now_here.values())  # type: ignore[operator]


def new_faults(job: Job, facts: Facts) -> tuple[FaultReport, ...]:
    """Faults of current incarnations that nobody has acted on yet."""
    found = []
    handled = set(job.handled)
    for rank, f in sorted(current(job, facts).items()):
        if f.fault is not None and (rank, f.incarnation, f.fault.at) not in handled:
            found.append(f.fault)
        elif (
            f.stage is Stage.EXITED
            and (f.exit_code != 0 or job.phase in (Phase.PAUSING, Phase.FORMING))  # it was needed once more
            and (rank, f.incarnation, EXIT_AT) not in handled
            and (f.fault is None or f.fault.retryable)
        ):
            found.append(exit_fault(f))
    return tuple(found)


def exit_fault(f: RankFacts) -> FaultReport:
    code = f.exit_code if f.exit_code is not None else 0
    kind = "signal" if code < 0 else "exit"
    text = signal_name(-code) if code < 0 else f"exit code {code}"
    return FaultReport(kind=kind, rank=f.rank, incarnation=f.incarnation, step=f.progress.step, text=text, at=EXIT_AT)


def signal_name(number: int) -> str:
    names = {1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL"}
    names |= {10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU"}
    return names.get(number, f"signal {number}")


# ---------------------------------------------------------------------------------------------------- phases


def _starting(job: Job, facts: Facts, now: float) -> Decision:
    if _all(job, facts, lambda f: f.library and f.stage is Stage.SETUP):
        gen = job.generation + 1
        deadline = now + job.limits.form_s
        new = replace(job, phase=Phase.FORMING, generation=gen, agreement=None, deadline=deadline, library=True)
        return Decision(new, (f"all {job.world_size} ranks are here; forming generation {gen}",))
    if job.incident is not None and not job.library and _all(job, facts, lambda f: f.alive and f.pid > 0):
        return Decision(_close(job, now), (), _was(job, now))  # of a plain script no more can be known
    if job.deadline is None and any(f.stage is Stage.SETUP for f in current(job, facts).values()):
        return Decision(replace(job, deadline=now + job.limits.start_s))
    return Decision(job)


def _running(job: Job, facts: Facts, now: float) -> Decision:
    here = current(job, facts)
    if job.phase is Phase.RUNNING and _all(job, facts, lambda f: f.stage is Stage.DONE or f.exit_code == 0):
        new = _close(replace(job, phase=Phase.FINISHING), now)
        return Decision(new, ("all ranks are through the loop",), _was(job, now))
    done = (Stage.DONE, Stage.EXITED)
    settled = all((f.resumed and f.generation == job.generation) or f.stage in done for f in here.values())
    if job.incident is not None and len(here) == job.world_size and settled:
        return Decision(_close(job, now), (), _was(job, now))
    return Decision(job)


def _was(job: Job, now: float) -> tuple[Incident, ...]:
    return (job.incident.closed(now),) if job.incident is not None else ()


def _close(job: Job, now: float) -> Job:
    if job.incident is None:
        return job
    step = job.agreement.step + 1 if job.agreement else job.progress_step
    progressed = step > job.progress_step
    return replace(
        job,
        incident=None,
        deadline=None,
        progress_step=max(step, job.progress_step),
        repeats=() if progressed else job.repeats,
    )


def _pausing(job: Job, facts: Facts, now: float) -> Decision:
    here = current(job, facts)
    missing = [r for r in range(job.world_size) if not _arrived(here.get(r), job.generation)]
    if missing:
        return Decision(job)
    stuck = [f for f in here.values() if f.stage is Stage.PAUSED and f.scope is Scope.SETUP]
    if stuck:
        why = f"rank {stuck[0].rank} was in set-up, before its first step, so no step can be redone"
        return _restart(job, now, why)
    outcome = agree([_copy(f) for f in here.values()])
    if isinstance(outcome, NoAgreement):
        return _restart(job, now, outcome.why)
    incident = job.incident.marked("mend", now) if job.incident else None
    if incident is not None:
        incident = incident.decided(incident.policy, outcome.why)
    new = replace(
        job,
        phase=Phase.FORMING,
        agreement=outcome,
        between=any(f.between > 0 or f.scope is Scope.OUTSIDE for f in here.values()),
        incident=incident,
        deadline=now + job.limits.form_s,
    )
    return Decision(new, (outcome.why,))


def _copy(f: RankFacts) -> Copy:
    if f.stage is Stage.PARKED:
        return Copy(f.rank, None, False, False, f.local_steps)
    return Copy(f.rank, f.step, f.clean, f.undo, f.local_steps, f.light)


def _arrived(f: RankFacts | None, generation: int) -> bool:
    if f is None:
        return False
    return f.stage is Stage.PARKED or (f.stage is Stage.PAUSED and f.generation == generation)


def _ready(f: RankFacts, generation: int) -> bool:
    return f.stage in (Stage.FORMED, Stage.TRAINING, Stage.DONE) and f.generation == generation


def _forming(job: Job, facts: Facts, now: float) -> Decision:
    if _all(job, facts, lambda f: _ready(f, job.generation)):
        incident = job.incident.marked("form", now) if job.incident else None
        return Decision(replace(job, phase=Phase.RUNNING, incident=incident, deadline=None))
    return Decision(job)


# ---------------------------------------------------------------------------------------------------- faults


def _on_faults(job: Job, facts: Facts, faults: tuple[FaultReport, ...], now: float) -> Decision:
    job = _remember(job, faults)
    job = _open(job, faults, facts, now)
    hopeless = _nothing_to_redo(job)
    if hopeless:
        return _restart(job, now, hopeless)
    assert job.incident is not None
    culprit = _own_bug(job, faults)
    if culprit is not None:
        return _fail(job, now, culprit, "the same error came back at the same step: this is an error in the script")
    repeated = _repeated(job, faults)
    if repeated is not None:
        return _restart(job, now, f"rank {repeated.rank} {describe(repeated)} {IDENTICAL_LIMIT} times with no progress")
    return _pause(job, facts, now)


def _nothing_to_redo(job: Job) -> str:
    """Why no rank holds anything yet that a step could be redone from; empty when some may."""
    match job.phase:
        case Phase.STARTING:
            return "the failed script does not use the library, or had not begun"
        case Phase.FORMING if job.agreement is None:
            return "the first group was still forming, so there is no step to redo"
    return ""


def _remember(job: Job, faults: tuple[FaultReport, ...]) -> Job:
    handled = (*job.handled, *((f.rank, f.incarnation, f.at) for f in faults))[-8 * max(8, job.world_size) :]
    lived = job.generation - (job.phase is Phase.PAUSING)  # during a pause the next one is open, nobody is in it yet
    known = {r.signature: r for r in job.repeats}
    for f in faults:
        if f.retryable == "communication":
            continue
        old = known.pop(f.signature(), Repeat(f.signature(), 0, -1, ()))
        if old.generation == lived and f.rank not in old.ranks:
            known[f.signature()] = replace(old, ranks=(*old.ranks, f.rank))
        else:
            known[f.signature()] = replace(old, count=old.count + 1, generation=lived, ranks=(f.rank,))
    return replace(job, handled=handled, repeats=tuple(known.values())[-32:])


def _count(job: Job, fault: FaultReport) -> int:
    return next((r.count for r in job.repeats if r.signature == fault.signature()), 0)


def _open(job: Job, faults: tuple[FaultReport, ...], facts: Facts, now: float) -> Job:
    if job.incident is not None:
        return replace(job, incident=job.incident.merged(faults))
    number = job.incidents + 1
    step = max((f.progress.step for f in facts.values()), default=-1)
    since_s = max(f.since_s for f in faults)
    incident = Incident(number=number, faults=faults, step=step, opened_at=now - since_s)
    return replace(job, incident=incident.marked("detect", now), incidents=number)


def _own_bug(job: Job, faults: tuple[FaultReport, ...]) -> FaultReport | None:
    return next((f for f in faults if f.kind == "exception" and not f.retryable and _count(job, f) >= 2), None)


def _repeated(job: Job, faults: tuple[FaultReport, ...]) -> FaultReport | None:
    return next((f for f in faults if _count(job, f) > IDENTICAL_LIMIT), None)


def _pause(job: Job, facts: Facts, now: float) -> Decision:
    """Open the next generation: interrupt the living, replace the dead."""
    incident = job.incident
    assert incident is not None
    here = current(job, facts)
    dead = sorted(
        {f.rank for f in incident.faults if _needs_new_process(f) and job.incarnations[f.rank] == f.incarnation}
        | {r for r, f in here.items() if f.stage is Stage.EXITED}
    )
    if job.phase is Phase.PAUSING and not dead:
        return Decision(job)  # an echo of the first fault: its rank is on its way to the fence anyway
    step = max((f.progress.step for f in facts.values()), default=-1)
    retries = job.retries_at[1] + 1 if job.retries_at[0] == step else 1
    job = replace(job, retries_at=(step, retries))
    if not dead and retries > RETRY_LIMIT:
        suspects = [f for f in incident.faults if job.incarnations[f.rank] == f.incarnation]
        dead = [f.rank for f in sorted(suspects, key=lambda f: f.retryable == "communication")][:1]
    policy, why = _choose(job, tuple(dead))
    if policy not in (Policy.RETRY, Policy.RECOVER_IN_PLACE):
        return _restart(job, now, why)
    incarnations = tuple(i + 1 if r in dead else i for r, i in enumerate(job.incarnations))
    already = job.phase is Phase.PAUSING  # a fault during the pause changes who is replaced, not the generation
    new = replace(
        job,
        phase=Phase.PAUSING,
        generation=job.generation if already else job.generation + 1,
        incarnations=incarnations,
        restarts_used=job.restarts_used + len(dead),
        agreement=None,
        deadline=now + job.limits.pause_s + job.limits.steps_s,
        incident=incident.decided(policy.value, why),
    )
    return Decision(new, (why,))


def _needs_new_process(f: FaultReport) -> bool:
    return f.kind in ("exit", "signal", "hang", "start") or (f.kind == "exception" and not f.retryable)


def _choose(job: Job, dead: tuple[int, ...]) -> tuple[Policy, str]:
    """The cheapest policy that is configured, can cure this and has budget."""
    assert job.incident is not None
    head = job.incident.headline()
    if not dead:
        if Policy.RETRY in job.policies:
            return Policy.RETRY, f"{head}; redoing the step in place, no process ends"
        if Policy.RECOVER_IN_PLACE not in job.policies:
            return Policy.EXIT, f"{head}; neither retry nor recover-in-place is configured"
        if job.incident.policy == Policy.RECOVER_IN_PLACE.value:
            return Policy.RECOVER_IN_PLACE, f"{head}; forming the group once more"
        return Policy.EXIT, f"{head}; retry is not configured"
    ranks = ", ".join(map(str, dead))
    if Policy.RECOVER_IN_PLACE not in job.policies:
        return Policy.EXIT, f"{head}; recover-in-place is not configured"
    if job.restarts_used + len(dead) > job.limits.max_restarts:
        return Policy.EXIT, f"{head}; the limit of {job.limits.max_restarts} process restarts is used up"
    if len(dead) == job.world_size:
        return Policy.EXIT, f"{head}; no rank is left that holds the state"
    plural = "processes" if len(dead) > 1 else "process"
    return Policy.RECOVER_IN_PLACE, f"{head}; restarting the {plural} of rank {ranks} in place"


def _on_deadline(job: Job, facts: Facts, now: float) -> Decision:
    here = current(job, facts)
    match job.phase:
        case Phase.STARTING:
            late = [r for r in range(job.world_size) if r not in here or here[r].stage is not Stage.SETUP]
            faults = _late(job, here, late, "start", "did not start")
            why = f"rank {_list(late)} did not start within {job.limits.start_s:g} s of the others"
            return _restart(_open(_remember(job, faults), faults, facts, now), now, why)
        case Phase.PAUSING:
            return _pause_is_late(job, facts, now)
        case Phase.FORMING:
            late = [r for r in range(job.world_size) if r not in here or not _ready(here[r], job.generation)]
            return _on_faults(job, facts, _form_is_late(job, here, late), now)
    return Decision(replace(job, deadline=None))


def _form_is_late(job: Job, here: Facts, late: list[int]) -> tuple[FaultReport, ...]:
    """One that is stuck keeps all others from forming. Who is to blame shows at the fence of the next try.

    A parked process does not go to the fence; one that has now been called twice in vain is given up.
    """
    text = "did not join the new group in time"
    called = {(f.rank, f.incarnation) for f in job.incident.faults if f.kind == "stall"} if job.incident else set()
    deaf = [r for r in late if r in here and here[r].stage is Stage.PARKED and (r, here[r].incarnation) in called]
    if deaf:
        return _late(job, here, deaf, "hang", text)
    return _late(job, here, late, "stall", text)


def _pause_is_late(job: Job, facts: Facts, now: float) -> Decision:
    here = current(job, facts)
    late = [r for r in range(job.world_size) if not _arrived(here.get(r), job.generation)]
    coming = [r for r in late if r not in here or here[r].stage in (Stage.STARTING, Stage.SETUP)]
    busy = [r for r in late if r not in coming and here[r].progress.section]
    patience = (job.incident.opened_at if job.incident is not None else now) + job.limits.mend_s
    if now < patience and len(coming) + len(busy) == len(late):
        return Decision(replace(job, deadline=patience))
    hung = [r for r in late if r not in coming and (r not in busy or now >= patience)]
    if hung:
        return _on_faults(job, facts, _late(job, here, hung, "hang", "did not reach the fence in time"), now)
    return _restart(job, now, f"the replacement of rank {_list(coming)} did not come up in {job.limits.mend_s:g} s")


def _late(job: Job, here: Facts, ranks: list[int], kind: str, text: str) -> tuple[FaultReport, ...]:
    def fault(r: int) -> FaultReport:
        step = here[r].progress.step if r in here else -1
        echo = "communication" if kind == "stall" else ""
        return FaultReport(kind, r, job.incarnations[r], step=step, text=text, retryable=echo, at=LATE_AT)

    return tuple(fault(r) for r in ranks)


def _list(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


# ---------------------------------------------------------------------------------------------------- ends


def _restart(job: Job, now: float, why: str) -> Decision:
    """The last rung: every rank starts again, within the budget."""
    assert job.incident is not None
    root = job.incident.root_cause
    if job.restarts_used >= job.limits.max_restarts:
        return _fail(job, now, root, f"{why}; the limit of {job.limits.max_restarts} restarts is used up")
    worst = max(job.incident.faults, key=lambda f: _count(job, f))
    if _count(job, worst) >= IDENTICAL_LIMIT:
        return _fail(job, now, worst, f"the same failure {IDENTICAL_LIMIT} times with no progress")
    skipped = "; dump needs checkpoints, which this version does not write" if Policy.DUMP in job.policies else ""
    text = f"{why}{skipped}; restarting all {job.world_size} ranks"
    new = replace(
        job,
        phase=Phase.STARTING,
        generation=job.generation + 1,
        incarnations=tuple(i + 1 for i in job.incarnations),
        attempt=job.attempt + 1,
        restarts_used=job.restarts_used + 1,
        agreement=None,
        deadline=None,
        incident=job.incident.decided(Policy.EXIT.value, text).marked("pause", now),
        retries_at=(-1, 0),
        progress_step=-1,
    )
    return Decision(new, (text,))


def _fail(job: Job, now: float, root: FaultReport, why: str) -> Decision:
    closed = (job.incident.decided(Policy.EXIT.value, why).closed(now),) if job.incident else ()
    new = replace(job, phase=Phase.FAILED, root_cause=root, reason=why, incident=None, deadline=None)
    return Decision(new, (why,), closed)


def _succeed(job: Job, now: float) -> Decision:
    new = replace(_close(job, now), phase=Phase.SUCCEEDED, deadline=None)
    return Decision(new, ("every rank ended well",), _was(job, now))
