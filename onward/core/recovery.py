"""The recovery state machine of one job: what to want next, given what is known.

`advance(job, facts, now)` compares what the manager wants (`Job`) with what is (`facts`) and takes one step towards it,
again and again until nothing more follows. It is level-triggered: it needs no particular order of events, and calling
it twice changes nothing. Every wait is a deadline in the state; a deadline that passes leads to the next rung.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from onward.core.agreement import Agreement, Copy, NoAgreement, Part, agree
from onward.core.checkpoints import choose_start
from onward.core.facts import FaultReport, RankFacts, Scope, Stage
from onward.core.incident import Incident, describe
from onward.core.membership import ALONE, Electorate, Outlook, Places, Vote, council, fill, vote
from onward.core.policy import Policy
from onward.core.published import Board
from onward.core.switch import SETTLE_S, Switch, choose, hold_all, judge, settled

HOT_SWITCH = "hot-switch"
PUZZLED = "looking for the cause"  # of a connection that broke: who is dead shows a moment later
CAUSE_S = 1.0
IDENTICAL_LIMIT = 3  # the same failure with no step in between
LONGEST_TRACE = 8000  # letters; the record that holds it is sent with all orders
EXIT_AT, LATE_AT = -1.0, -2.0  # stand for the time of faults that nobody reported
RETRY_LIMIT = 3  # redos of one step before a process is replaced instead
RELOAD = "reload"  # not a policy that users name: `exit`, but from a copy that survived, in memory
STOP = "stop"
NO_QUORUM = "NoQuorum"
QUIET_S = 1.0  # less than this without a majority is not worth a word


class Phase(str, Enum):
    """In the order in which a generation goes through them."""

    STARTING = "Starting"
    PAUSING = "Pausing"
    SAVING = "Saving"
    FORMING = "Forming"
    RUNNING = "Running"
    FINISHING = "Finishing"  # through the loop; what comes after it may still fail
    LEAVING = "Leaving"  # all scripts have ended
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"


OVER = (Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED)


@dataclass(frozen=True)
class Limits:
    """Deadlines in seconds. Each has a next step; none is infinite by accident."""

    pause_s: float = 5.0  # for a rank to reach the fence, on top of what its steps take
    mend_s: float = 600.0  # for a replacement to run the script up to its first step
    hot_switch: bool = False  # a node that is worse than it should be is replaced while it still trains
    switch_s: float = 60.0  # for a stand-in to get ready
    min_nodes: int = 1  # with fewer the job waits
    reschedule_s: float = 270.0  # for a node to take the place of a lost one
    quorum_s: float = 1800.0  # for those to speak up without whom nothing may be decided
    form_s: float = 15.0  # for groups and state
    save_s: float = 600.0  # for a surviving copy to be written
    start_s: float = 1800.0  # for a rank that the others wait for before their first step; torch's own default
    after_s: float = 1800.0  # for what a rank does after the loop, while others wait for it
    max_restarts: int = 32767
    steps_s: float = 0.0  # measured: how long a rank may legally take to reach the fence


@dataclass(frozen=True)
class Repeat:
    """How often one failure has come back with no step in between. Many ranks that fail alike at once are one."""

    signature: tuple[str, int, str]
    count: int
    generation: int  # in which it was last seen
    ranks: tuple[int, ...]  # that failed so in it
    first: FaultReport | None = None  # when it was seen for the first time


@dataclass(frozen=True)
class Job:
    """What the manager wants. Small and complete: a copy of it is enough to go on elsewhere."""

    world_size: int
    policies: tuple[Policy, ...]
    limits: Limits = field(default_factory=Limits)
    term: int = 1
    phase: Phase = Phase.STARTING
    generation: int = 0
    floor: int = 0  # a manager before this one may have opened generations up to this, and nobody has told us
    places: Places = ()  # by node; a vacant one waits for an agent
    voters: tuple[Electorate, ...] = ()  # the agents of the last generation that ran, and of those that may have run
    run: str = ""  # names this run of the job, among all that write to one directory
    absent: tuple[int, ...] = ()  # ranks without which the job goes on, for now
    joining: tuple[int, ...] = ()  # ranks that come back, and have no local state
    switch: Switch | None = None
    tried: tuple[tuple[int, str], ...] = ()  # switches that were undone: (node, stand-in)
    switched: tuple[int, ...] = ()  # ranks whose local state is on its way from their old node
    past: tuple[tuple[int, int], ...] = ()  # of these: (rank, the step whose block its old process had begun, or would)
    soft: bool = False  # pause at the end of the step, not in the middle of it
    waiting: str = ""  # what the job waits for, if it is not for its own processes
    incarnations: tuple[int, ...] = ()  # wanted, by rank
    attempt: int = 0  # restarts of the whole job
    library: bool = False  # its script has been seen to use the library
    restarts_used: int = 0
    moved: int = 0  # processes started elsewhere because their node was lost: not restarts of a container
    agreement: Agreement | None = None
    begun: bool = False  # it has been decided from where the first step begins
    ending: str = ""  # all ranks are to end, after a surviving copy is kept: dump, reload or stop
    through: bool = False  # every rank has been through the loop
    between: bool = False  # some rank stands in a collective between steps, or has run some since its last commit
    incident: Incident | None = None
    incidents: int = 0
    last: Incident | None = None  # the latest that is over, for those who have not heard
    deadline: float | None = None
    puzzled_until: float = 0.0  # a connection broke and nobody is known to be dead yet; 0: no such question
    mend_until: float = 0.0  # how long replacements may take
    retries_at: tuple[int, int] = (-1, 0)  # (step, redos of it)
    repeats: tuple[Repeat, ...] = ()  # failures since the last progress
    handled: tuple[tuple[int, int, float], ...] = ()  # fault reports already acted on: (rank, incarnation, at)
    progress_step: int = -1  # furthest step that all had committed when the last incident closed
    root_cause: FaultReport | None = None
    reason: str = ""
    board: Board = field(default_factory=Board)  # faults that others have published

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those who take part."""
        if not self.absent:
            return tuple(range(self.world_size))
        absent = frozenset(self.absent)
        return tuple(r for r in range(self.world_size) if r not in absent)


@dataclass(frozen=True)
class Decision:
    job: Job
    why: tuple[str, ...] = ()
    closed: tuple[Incident, ...] = ()


Facts = Mapping[int, RankFacts]


def new_job(world_size: int, policies: tuple[Policy, ...], limits: Limits, places: Places = ()) -> Job:
    incarnations = (1,) * world_size
    return Job(world_size=world_size, policies=policies, limits=limits, incarnations=incarnations, places=places)


def node_of(job: Job, rank: int) -> int:
    """Ranks are dealt to nodes in blocks, as torchrun does."""
    return rank // max(1, job.world_size // max(1, len(job.places)))


def age(job: Job) -> tuple[int, ...]:
    """Larger for the newer of two records of one job. Within a generation the phases follow each other in order."""
    phase = (tuple(Phase).index(job.phase), job.begun, bool(job.ending), job.ending == STOP)
    return (job.term, job.generation, job.attempt, job.incidents, job.restarts_used, *phase, job.board.version)


def resumed(job: Job, now: float) -> Job:
    """The job as a new manager, or one that was cut off, goes on with it.

    The old manager's clock may have been another, and nobody could answer meanwhile: all waits begin again.
    """
    waits = {
        Phase.STARTING: job.limits.start_s,
        Phase.PAUSING: job.limits.pause_s + job.limits.steps_s,
        Phase.SAVING: job.limits.save_s,
        Phase.FORMING: _forming_s(job),
    }
    deadline = now + waits.get(job.phase, 0.0) if job.deadline is not None else None
    incident = job.incident.rebased(now) if job.incident is not None else None
    puzzled = now + CAUSE_S if job.puzzled_until else 0.0
    if job.switch is not None:
        job = replace(job, switch=replace(job.switch, until=now + job.limits.switch_s, settle_until=0.0))
    return replace(job, deadline=deadline, mend_until=now + _mend_s(job), puzzled_until=puzzled, incident=incident)


def _next(job: Job) -> int:
    """The number of the next generation. Never one that can have been given before."""
    return max(job.generation, job.floor) + 1


def inherited(last: Job, term: int, now: float) -> Job:
    """The job, as the manager of a new term takes it over from the newest record that it has heard of.

    The one before it may have gone a step further with nobody left to tell. What that step was to be called stays its
    name; who stands at the fence goes there once more, under a new one.
    """
    job = replace(last, term=term, floor=max(last.floor, last.generation) + 1)
    if job.phase is Phase.PAUSING:
        job = replace(job, generation=_next(job))
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
        return _fenced(replace(job, phase=Phase.RUNNING), now)
    text = "was told to pause by a manager that is no more"
    return _on_faults(job, facts, _late(job, facts, list(ranks), "stall", text), now).job


def _mend_s(job: Job) -> float:
    return job.limits.reschedule_s if vacant(job) else job.limits.mend_s


def vacant(job: Job) -> list[int]:
    """Nodes that are missing: without those whose ranks are absent the job goes on."""
    missing = [i for i, m in enumerate(job.places) if m is None]
    return [i for i in missing if any(node_of(job, r) == i for r in job.ranks)]


def _forming_s(job: Job) -> float:
    """Who loads also rehearses, as a replacement does before it parks: that takes steps, not moments."""
    return job.limits.mend_s if _is_load(job) else job.limits.form_s


def _is_load(job: Job) -> bool:
    return job.agreement is not None and Part.LOAD in job.agreement.parts.values()


def quorum(job: Job, outlook: Outlook) -> Vote:
    """Whether anything may be decided. Who is silent may be alive, and others may be deciding there."""
    return vote(job.voters, outlook)


def advance(job: Job, facts: Facts, now: float, outlook: Outlook = ALONE) -> Decision:
    """Follow the facts until nothing more follows. Without a majority nothing is done that others would notice.

    When some agent has not been heard for a while, a deadline that passes is no evidence against its ranks.
    """
    verdict = quorum(job, outlook)
    if not verdict.enough and job.phase not in OVER and not _all_ended_well(job, facts):
        return _wait_for_majority(job, verdict, outlook, now)
    why: list[str] = []
    closed: list[Incident] = []
    if job.waiting.startswith(NO_QUORUM):
        job = resumed(replace(job, waiting=_vacancy(job)), now)
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
        return _fail(job, now, _root(job), verdict.why)
    if outlook.lacking_s < QUIET_S or job.waiting == verdict.why:
        return Decision(job)
    return Decision(replace(job, waiting=verdict.why), (verdict.why,))


def _all_ended_well(job: Job, facts: Facts) -> bool:
    return _all(job, facts, lambda f: f.stage is Stage.EXITED and f.exit_code == 0)


def _once(job: Job, facts: Facts, now: float, outlook: Outlook) -> Decision:
    if job.phase in OVER:
        return Decision(job)
    if _all_ended_well(job, facts):
        return _succeed(job, now)
    if outlook.stopping and job.ending != STOP:
        return _stop(job, now)
    faults = new_faults(job, facts)
    if faults:
        return _on_faults(job, facts, faults, now)
    if job.absent:
        decision = _tend_absent(job, facts)
        if decision.job != job:
            return decision
    if None in job.places and job.phase in (Phase.STARTING, Phase.PAUSING, Phase.RUNNING):
        decision = _give_places(job, outlook, now)
        if decision.job != job:
            return decision
    decision = _follow(job, facts, now, outlook)
    if decision.job == job and job.deadline is not None and now >= job.deadline and not outlook.deaf:
        return _on_deadline(job, facts, now)
    return decision


def _give_places(job: Job, outlook: Outlook, now: float) -> Decision:
    places = fill(job.places, outlook.here)
    new = [(i, m) for i, (m, old) in enumerate(zip(places, job.places, strict=True)) if m is not None and old is None]
    if not new:
        return Decision(job)
    why = ", ".join(f"{m.name} takes the place of node {i}" for i, m in new)
    until = now + job.limits.mend_s
    deadline = now + job.limits.pause_s + job.limits.steps_s if job.phase is Phase.PAUSING else None
    waiting = job.waiting if None in places else ""
    if job.phase is Phase.RUNNING:
        return Decision(replace(job, places=places), (f"{why}, and joins when it is ready",))
    incident = job.incident.decided(job.incident.policy, why) if job.incident is not None else None
    job = replace(job, places=places, mend_until=until, deadline=deadline, waiting=waiting, incident=incident)
    return Decision(job, (why,))


def _follow(job: Job, facts: Facts, now: float, outlook: Outlook) -> Decision:
    """What the facts allow, deadlines apart."""
    match job.phase:
        case Phase.STARTING:
            return _starting(job, facts, now, outlook)
        case Phase.PAUSING:
            return _gather(job, facts, now) if job.ending else _pausing(job, facts, now, outlook)
        case Phase.SAVING:
            return _saving(job, facts, now)
        case Phase.FORMING:
            return _forming(job, facts, now, outlook)
        case _:
            return _running(job, facts, now, outlook)


def current(job: Job, facts: Facts) -> dict[int, RankFacts]:
    """Facts of the incarnations that are wanted; anything else is the past or not there yet."""
    absent = frozenset(job.absent)
    wanted = dict(enumerate(job.incarnations))
    return {r: f for r, f in facts.items() if f.incarnation == wanted.get(r) and r not in absent}


def _all(job: Job, facts: Facts, test: object) -> bool:
    now_here = current(job, facts)
    return len(now_here) == len(job.ranks) and all(test(f) for f in now_here.values())  # type: ignore[operator]


def new_faults(job: Job, facts: Facts) -> tuple[FaultReport, ...]:
    """Faults of current incarnations that nobody has acted on yet."""
    found = []
    handled = set(job.handled)
    known = _condemned(job) if job.ending else set()  # nobody is replaced any more, so they stay what they are
    for rank, f in sorted(current(job, facts).items()):
        if rank in known:
            continue
        if f.fault is not None and (rank, f.incarnation, f.fault.at) not in handled:
            found.append(f.fault)
        elif (
            f.stage is Stage.EXITED
            and (f.exit_code != 0 or job.phase in (Phase.PAUSING, Phase.FORMING))  # it was needed once more
            and (rank, f.incarnation, EXIT_AT) not in handled
            and (f.fault is None or f.fault.retryable)
        ):
            found.append(exit_fault(f, facts))
    return tuple(sorted([*_left_early(job, facts, found), *found], key=_may_be_an_echo))


def _left_early(job: Job, facts: Facts, found: Sequence[FaultReport]) -> list[FaultReport]:
    """Where connections break and nobody has failed, whoever has ended well too early is what they broke on."""
    if not found or not job.library or job.phase is not Phase.RUNNING or any(not _is_echo(f) for f in found):
        return []
    gone = [f for _, f in sorted(current(job, facts).items()) if f.stage is Stage.EXITED and f.exit_code == 0]
    return [exit_fault(f, facts) for f in gone if (f.rank, f.incarnation, EXIT_AT) not in job.handled]


def _is_echo(fault: FaultReport) -> bool:
    return fault.retryable == "communication"


def _may_be_an_echo(fault: FaultReport) -> bool:
    """Of those that are seen at once: who was killed from outside did not die of what befell another.

    An abort can be either: libraries end the process so when they lose a peer.
    """
    return fault.kind not in ("signal", "node") or fault.text == signal_name(6)


def exit_fault(f: RankFacts, facts: Facts) -> FaultReport:
    code = f.exit_code if f.exit_code is not None else 0
    kind = "signal" if code < 0 else "exit"
    text = signal_name(-code) if code < 0 else f"exit code {code}"
    others = max((other.progress.step for rank, other in facts.items() if rank != f.rank), default=-1)
    return FaultReport(
        kind=kind, rank=f.rank, incarnation=f.incarnation, step=f.progress.step, text=text, at=EXIT_AT, others=others
    )


def signal_name(number: int) -> str:
    names = {1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL"}
    names |= {10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU"}
    return names.get(number, f"signal {number}")


# ---------------------------------------------------------------------------------------------------- phases


def _starting(job: Job, facts: Facts, now: float, outlook: Outlook) -> Decision:
    if _all(job, facts, lambda f: f.library and f.stage is Stage.SETUP):
        gen = _next(job)
        deadline = now + job.limits.form_s
        new = replace(job, phase=Phase.FORMING, generation=gen, agreement=None, deadline=deadline, library=True)
        new = replace(new, waiting="", voters=_with_newcomers(job, outlook))
        return Decision(new, (f"all {job.world_size} ranks are here; forming generation {gen}",))
    if job.incident is not None and not job.library and _all(job, facts, lambda f: f.alive and f.pid > 0):
        return Decision(_close(job, now), (), _was(job, now))  # of a plain script no more can be known
    if job.deadline is None and vacant(job):
        return Decision(replace(job, deadline=now + _vacant_s(job)))
    if job.deadline is None and any(f.stage is Stage.SETUP for f in current(job, facts).values()):
        return Decision(replace(job, deadline=now + job.limits.start_s))
    return Decision(job)


def _running(job: Job, facts: Facts, now: float, outlook: Outlook) -> Decision:
    here = current(job, facts)
    if job.phase is Phase.RUNNING and _all(job, facts, _is_through):
        new = _close(replace(job, phase=Phase.FINISHING, through=True), now)
        return Decision(new, ("all ranks are through the loop",), _was(job, now))
    if job.phase is Phase.FINISHING and _all(job, facts, lambda f: f.stage is Stage.LEFT or f.exit_code == 0):
        return Decision(_close(replace(job, phase=Phase.LEAVING), now), (), _was(job, now))
    done = (*_THROUGH, Stage.EXITED)
    settled = all((f.resumed and f.generation == job.generation) or f.stage in done for f in here.values())
    if job.incident is not None and len(here) == len(job.ranks) and settled:
        return Decision(_close(job, now), (), _was(job, now))
    if job.begun:
        if job.incident is not None:
            return Decision(job)
        return _grow(job, facts, now) if job.absent else _switch(job, facts, outlook, now)
    if any(f.resumed and f.generation == job.generation for f in here.values()):
        return Decision(replace(job, begun=True))  # decided by a manager whose word is lost
    ready = _all(job, facts, lambda f: f.stage is Stage.READY and f.generation == job.generation)
    return _begin(job, facts, now) if ready else Decision(job)


_THROUGH = (Stage.DONE, Stage.AFTER, Stage.LEFT)


def _is_through(f: RankFacts) -> bool:
    return f.stage in _THROUGH or f.exit_code == 0


def _begin(job: Job, facts: Facts, now: float) -> Decision:
    """Every rank stands before its first step: begin, or load what all of them can load."""
    here = current(job, facts)
    step, why = choose_start({r: f.loadable for r, f in here.items()}, {r: f.partly for r, f in here.items()})
    if step < 0:
        return Decision(replace(job, begun=True), (why,) if why else ())
    parts = {r: Part.LOAD if step in f.loadable else Part.RECEIVE for r, f in sorted(here.items())}
    agreement = Agreement(step, parts, tuple(r for r, part in parts.items() if part is Part.LOAD), why)
    new = replace(
        job,
        phase=Phase.FORMING,
        generation=_next(job),
        begun=True,
        agreement=agreement,
        between=False,
        incident=job.incident.decided(job.incident.policy, why) if job.incident else None,
    )
    return Decision(replace(new, deadline=now + _forming_s(new)), (why,))


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
        last=job.incident.closed(now).in_short(),
        deadline=None,
        progress_step=max(step, job.progress_step),
        repeats=() if progressed else job.repeats,
    )


def _pausing(job: Job, facts: Facts, now: float, outlook: Outlook) -> Decision:
    here = current(job, {**facts, **_switched(job, outlook)})
    missing = [r for r in job.ranks if not _arrived(here.get(r), job.generation)]
    if job.soft and len(missing) < len(job.ranks) - len(job.joining):
        return Decision(replace(job, soft=False))  # one stands at the fence: the others cannot end a step without it
    gone = vacant(job)
    if gone and job.deadline != job.mend_until and all(node_of(job, r) in gone for r in missing):
        return Decision(replace(job, deadline=job.mend_until))  # only a node is waited for
    if missing:
        return Decision(job)
    if job.switch is not None and job.switch.swapping:
        return _swap_when_settled(job, job.switch, here, outlook, now)
    if any(here[r].stage is Stage.PARKED and not here[r].local_steps for r in job.switched):
        return Decision(job)  # until it has what the old node kept
    if job.puzzled_until:
        if now < job.puzzled_until:
            return Decision(replace(job, deadline=job.puzzled_until))
        assert job.incident is not None
        return _climb(job, now, f"{job.incident.headline()}; retry is not configured")
    stuck = [f for f in here.values() if f.stage is Stage.PAUSED and f.scope is Scope.SETUP]
    if stuck:
        why = f"rank {stuck[0].rank} was in set-up, before its first step, so no step can be redone"
        return _climb(job, now, why)
    outcome = agree([_copy(f, job.generation, f.rank in job.joining) for f in here.values()])
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
        waiting="",
        deadline=now + job.limits.form_s,
        voters=_with_newcomers(job, outlook),
    )
    return Decision(new, (outcome.why,))


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


def _copy(f: RankFacts, generation: int, fresh: bool = False) -> Copy:
    follows = f.step >= 0 and f.generation == generation  # what it holds counts at the fence it had followed to
    if f.stage is Stage.PARKED and not follows:
        return Copy(f.rank, None, False, False, f.local_steps, fresh=fresh)
    return Copy(f.rank, f.step, f.clean, f.undo, f.local_steps, light=f.light)


def _arrived(f: RankFacts | None, generation: int) -> bool:
    if f is None:
        return False
    return f.stage is Stage.PARKED or (f.stage is Stage.PAUSED and f.generation == generation)


def _ready(f: RankFacts, generation: int) -> bool:
    return f.stage in (Stage.FORMED, Stage.TRAINING, *_THROUGH) and f.generation == generation


def _forming(job: Job, facts: Facts, now: float, outlook: Outlook) -> Decision:
    if _all(job, facts, lambda f: _ready(f, job.generation)):
        incident = job.incident.marked("form", now) if job.incident else None
        # A majority of each electorate has the record of this generation.
        voters = (_newcomers(job, outlook),) if job.voters else ()
        new = replace(job, phase=Phase.RUNNING, incident=incident, deadline=None, voters=voters, joining=(), soft=False)
        return Decision(replace(new, switched=(), past=()))
    return Decision(job)


# ---------------------------------------------------------------------------------------------------- faults


def _on_faults(job: Job, facts: Facts, faults: tuple[FaultReport, ...], now: float) -> Decision:
    job = _remember(job, faults)
    job = _vacate(_open(job, faults, facts, now), faults, now)
    if job.switch is not None:
        job = replace(job, switch=None)  # a hard fault comes first; the stand-in stands by
    hopeless = _nothing_to_redo(job)
    if job.ending:
        return Decision(job)  # who is dead counts by what it had published
    if hopeless:
        return _restart(job, now, hopeless)
    assert job.incident is not None
    culprit = _own_bug(job, faults)
    if culprit is not None:
        culprit = _first_seen(job, culprit)
        return _fail(job, now, culprit, "the same error came back at the same step: this is an error in the script")
    repeated = _repeated(job, faults)
    if repeated is not None:
        return _climb(job, now, f"rank {repeated.rank} {describe(repeated)} {IDENTICAL_LIMIT} times with no progress")
    return _pause(job, facts, now)


def _vacate(job: Job, faults: tuple[FaultReport, ...], now: float) -> Job:
    """The places of lost nodes are free for others."""
    lost = {node_of(job, f.rank) for f in faults if f.kind == "node"}
    if not lost:
        return job
    places = tuple(None if i in lost else m for i, m in enumerate(job.places))
    job = replace(job, places=places, mend_until=now + job.limits.reschedule_s)
    return replace(job, waiting=_vacancy(job))


def _vacancy(job: Job) -> str:
    return f"a node to take the place of node {_list(vacant(job))}" if vacant(job) else ""


def _nothing_to_redo(job: Job) -> str:
    """Why no rank holds anything yet that a step could be redone from; empty when some may."""
    match job.phase:
        case Phase.STARTING:
            return "the failed script does not use the library, or had not begun"
        case Phase.FORMING if job.agreement is None:
            return "the first group was still forming, so there is no step to redo"
        case Phase.FORMING if _is_load(job):
            return "the state was still being loaded"
        case Phase.RUNNING if not job.begun:
            return "the first step had not begun, so there is no step to redo"
    return ""


def _remember(job: Job, faults: tuple[FaultReport, ...]) -> Job:
    handled = (*job.handled, *((f.rank, f.incarnation, f.at) for f in faults))[-8 * max(8, job.world_size) :]
    lived = job.generation - (job.phase is Phase.PAUSING)  # during a pause the next one is open, nobody is in it yet
    known = {r.signature: r for r in job.repeats}
    for f in faults:
        if f.retryable == "communication":
            continue
        seen = replace(f, traceback=f.traceback[-LONGEST_TRACE:])
        old = known.pop(f.signature(), Repeat(f.signature(), 0, -1, (), seen))
        if old.generation == lived and f.rank not in old.ranks:
            known[f.signature()] = replace(old, ranks=(*old.ranks, f.rank))
        else:
            known[f.signature()] = replace(old, count=old.count + 1, generation=lived, ranks=(f.rank,))
    return replace(job, handled=handled, repeats=tuple(known.values())[-32:])


def _count(job: Job, fault: FaultReport) -> int:
    return next((r.count for r in job.repeats if r.signature == fault.signature()), 0)


def _first_seen(job: Job, fault: FaultReport) -> FaultReport:
    """The same failure, when nothing had gone wrong before it."""
    return next((r.first for r in job.repeats if r.signature == fault.signature() and r.first is not None), fault)


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
    lost = sorted(r for r in dead if job.places and job.places[node_of(job, r)] is None)
    policy, why = _choose(job, tuple(dead), tuple(lost))
    if len(dead) == len(job.ranks):
        return _restart(job, now, why)
    if policy not in (Policy.RETRY, Policy.RECOVER_IN_PLACE, Policy.RECOVER):
        return _climb(job, now, why)
    incarnations = tuple(i + 1 if r in dead else i for r, i in enumerate(job.incarnations))
    already = job.phase is Phase.PAUSING  # a fault during the pause changes who is replaced, not the generation
    new = replace(
        job,
        phase=Phase.PAUSING,
        generation=job.generation if already else _next(job),
        incarnations=incarnations,
        restarts_used=job.restarts_used + len(dead) - len(lost),
        moved=job.moved + len(lost),
        agreement=None,
        deadline=now + job.limits.pause_s + job.limits.steps_s,
        mend_until=now + _mend_s(job),
        waiting=job.waiting if vacant(job) else "",
        puzzled_until=now + CAUSE_S if why.endswith(PUZZLED) else 0.0,
        soft=False,
        incident=incident.decided(policy.value, why),
    )
    return Decision(new, (why,))


def _needs_new_process(f: FaultReport) -> bool:
    ended = ("exit", "signal", "hang", "start", "node", "restart")
    return f.kind in ended or (f.kind == "exception" and not f.retryable)


def _choose(job: Job, dead: tuple[int, ...], lost: tuple[int, ...]) -> tuple[Policy, str]:
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
        if all(f.retryable == "communication" for f in job.incident.faults):
            return Policy.RECOVER_IN_PLACE, f"{head}; {PUZZLED}"
        return Policy.EXIT, f"{head}; retry is not configured"
    ranks = ", ".join(map(str, dead))
    here = tuple(r for r in dead if r not in lost)
    if here and Policy.RECOVER_IN_PLACE not in job.policies:
        return Policy.EXIT, f"{head}; recover-in-place is not configured"
    if job.restarts_used + len(here) > job.limits.max_restarts:
        return Policy.EXIT, f"{head}; the limit of {job.limits.max_restarts} process restarts is used up"
    if len(dead) == len(job.ranks):
        return Policy.EXIT, f"{head}; no rank is left that holds the state"
    if lost and Policy.RECOVER not in job.policies:
        return Policy.EXIT, f"{head}; recover is not configured"
    if lost:
        return Policy.RECOVER, f"{head}; another node takes over rank {ranks}, the others keep their processes"
    plural = "processes" if len(dead) > 1 else "process"
    return Policy.RECOVER_IN_PLACE, f"{head}; restarting the {plural} of rank {ranks} in place"


def _on_deadline(job: Job, facts: Facts, now: float) -> Decision:
    here = current(job, facts)
    match job.phase:
        case Phase.STARTING:
            if vacant(job):  # to start the others once more would not bring anybody
                why = f"no node took the place of node {_list(vacant(job))} within {_vacant_s(job):g} s"
                return _fail(job, now, _root(job), why)
            ready = {r for r, f in here.items() if f.library and f.stage is Stage.SETUP}
            late = [r for r in range(job.world_size) if r not in ready]
            faults = _late(job, here, late, "start", "did not start")
            why = f"rank {_list(late)} did not start within {job.limits.start_s:g} s of the others"
            return _restart(_open(_remember(job, faults), faults, facts, now), now, why)
        case Phase.PAUSING:
            return _gather(job, facts, now, late=True) if job.ending else _pause_is_late(job, facts, now)
        case Phase.SAVING:
            return _not_saved(job, now, f"it took longer than {job.limits.save_s:g} s")
        case Phase.FORMING:
            late = [r for r in job.ranks if r not in here or not _ready(here[r], job.generation)]
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
    late = [r for r in job.ranks if not _arrived(here.get(r), job.generation)]
    coming = [r for r in late if r not in here or here[r].stage in (Stage.STARTING, Stage.SETUP)]
    busy = [r for r in late if r not in coming and (here[r].progress.section or here[r].stage is Stage.AFTER)]
    if not late:
        return _fail(job, now, _root(job), job.waiting or "nobody is late, and yet the job does not go on")
    after = any(here[r].stage is Stage.AFTER for r in busy)  # user code that nobody may hurry
    patience = job.mend_until if not after else max(job.mend_until, _opened_at(job, now) + job.limits.after_s)
    if now < patience and len(coming) + len(busy) == len(late):
        return Decision(replace(job, deadline=patience))
    hung = [r for r in late if r not in coming and (r not in busy or now >= patience)]
    if hung:
        return _on_faults(job, facts, _late(job, here, hung, "hang", "did not reach the fence in time"), now)
    if vacant(job):
        return _shrink(job, facts, now)
    return _climb(job, now, f"the replacement of rank {_list(coming)} did not come up in {job.limits.mend_s:g} s")


def _opened_at(job: Job, now: float) -> float:
    return job.incident.opened_at if job.incident is not None else now


def _vacant_s(job: Job) -> float:
    """When all have to start again anyway, nobody is kept waiting: there is time for a node to come."""
    return max(job.limits.reschedule_s, job.limits.mend_s)


def _nobody_came(job: Job) -> str:
    return f"no node took the place of node {_list(vacant(job))} within {job.limits.reschedule_s:g} s"


def _late(job: Job, here: Facts, ranks: list[int], kind: str, text: str) -> tuple[FaultReport, ...]:
    def fault(r: int) -> FaultReport:
        step = here[r].progress.step if r in here else -1
        echo = "communication" if kind == "stall" else ""
        return FaultReport(kind, r, job.incarnations[r], step=step, text=text, retryable=echo, at=LATE_AT)

    return tuple(fault(r) for r in ranks)


def _list(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


# ---------------------------------------------------------------------------------------------------- fewer and more


def _shrink(job: Job, facts: Facts, now: float) -> Decision:
    """Nobody takes the place of a lost node: go on with those who are left, if they can and are enough."""
    why = _nobody_came(job)
    if Policy.ELASTIC not in job.policies:
        return _climb(job, now, why)
    absent = tuple(r for r in range(job.world_size) if job.places[node_of(job, r)] is None)
    left = {r: f for r, f in current(job, facts).items() if r not in absent}
    unable = [r for r, f in left.items() if not f.elastic]
    if unable or not left:
        return _climb(job, now, f"{why}; elastic-training needs run.batches(global_batch=...), which the script lacks")
    nodes = len(job.places) - job.places.count(None)
    if nodes < job.limits.min_nodes:
        waiting = f"at least {job.limits.min_nodes} nodes; {nodes} are left"
        if waiting == job.waiting:
            return _climb(job, now, f"{why}, and still only {nodes} are left")
        until = now + job.limits.quorum_s
        return Decision(replace(job, waiting=waiting, mend_until=until, deadline=until), (f"waiting for {waiting}",))
    text = f"{why}; going on with {len(left)} of {job.world_size} ranks and the same global batch"
    incident = job.incident.decided(Policy.ELASTIC.value, text) if job.incident is not None else None
    new = replace(
        job,
        absent=absent,
        joining=tuple(r for r in job.joining if r not in absent),
        waiting="",
        incident=incident,
        deadline=now + job.limits.pause_s + job.limits.steps_s,
        mend_until=now + job.limits.mend_s,
    )
    return Decision(new, (text,))


def _tend_absent(job: Job, facts: Facts) -> Decision:
    """Who prepares to take an absent place may fail without anybody else being disturbed."""
    here = [facts[r] for r in job.absent if r in facts and facts[r].incarnation == job.incarnations[r]]
    lost = {node_of(job, f.rank) for f in here if f.fault is not None and f.fault.kind == "node"}
    if lost & {i for i, m in enumerate(job.places) if m is not None}:
        places = tuple(None if i in lost else m for i, m in enumerate(job.places))
        return Decision(replace(job, places=places), (f"node {_list(sorted(lost))} was lost before it could join",))
    dead = [f.rank for f in here if f.stage is Stage.EXITED and node_of(job, f.rank) not in lost]
    if not dead:
        return Decision(job)
    incarnations = tuple(i + 1 if r in dead else i for r, i in enumerate(job.incarnations))
    new = replace(job, incarnations=incarnations, moved=job.moved + len(dead))
    return Decision(new, (f"rank {_list(dead)} ended before it could join; starting it again",))


def _grow(job: Job, facts: Facts, now: float) -> Decision:
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
    why = f"{back} is ready; rank {_list(ready)} joins at the end of the step"
    number = job.incidents + 1
    step = max((f.progress.step for f in facts.values()), default=-1)
    incident = Incident(number=number, faults=(fault,), step=step, opened_at=now).marked("detect", now)
    new = replace(
        job,
        phase=Phase.PAUSING,
        generation=_next(job),
        absent=tuple(r for r in job.absent if r not in ready),
        joining=tuple(ready),
        soft=True,
        agreement=None,
        incident=incident.decided(Policy.ELASTIC.value, why),
        incidents=number,
        deadline=now + job.limits.pause_s + job.limits.steps_s,
        mend_until=now + job.limits.mend_s,
    )
    return Decision(new, (why,))


# ---------------------------------------------------------------------------------------------------- hot switch


def _switch(job: Job, facts: Facts, outlook: Outlook, now: float) -> Decision:
    """Beside the running job: find a stand-in for a sub-healthy node, and wait until it is ready."""
    if not job.limits.hot_switch or job.phase is not Phase.RUNNING:
        return Decision(job)
    if job.switch is None:
        new = choose(job.places, outlook, job.tried, now, job.limits.switch_s)
        if new is None:
            return Decision(job)
        why = f"{new.why}; {new.member.name} prepares to stand in for node {new.node}, training goes on"
        return Decision(replace(job, switch=new), (why,))
    wanted = _to_be_switched(job, job.switch)
    followed = [r for r, f in current(job, facts).items() if f.feed]
    verdict = judge(job.switch, outlook, outlook.stand_ins, wanted, now, followed)
    if verdict.word == "undo":
        return Decision(_undone(job, job.switch), (f"{verdict.why}; the switch is undone",))
    if verdict.word != "ready":
        return Decision(job)
    rank, number = min(wanted), job.incidents + 1
    fault = FaultReport("switch", rank, job.incarnations[rank], text=job.switch.why, at=now)
    step = max((f.progress.step for f in facts.values()), default=-1)
    incident = Incident(number=number, faults=(fault,), step=step, opened_at=now).marked("detect", now)
    new_job = replace(
        job,
        phase=Phase.PAUSING,
        generation=_next(job),
        switch=replace(job.switch, swapping=True, settle_until=0.0),
        soft=True,
        agreement=None,
        incident=incident.decided(HOT_SWITCH, f"{verdict.why}; swapping at the end of the step"),
        incidents=number,
        deadline=now + job.limits.pause_s + job.limits.steps_s,
        mend_until=now + job.limits.mend_s,
    )
    return Decision(new_job, (verdict.why,))


def _switched(job: Job, outlook: Outlook) -> Facts:
    """Just swapped: what was known of them as stand-ins is what is known of the ranks, until more is heard."""
    return {r: f for r, f in outlook.stand_ins.items() if r in job.switched and f.incarnation == job.incarnations[r]}


def _to_be_switched(job: Job, switch: Switch) -> dict[int, int]:
    """The stand-in's incarnations, by rank."""
    return {r: job.incarnations[r] + 1 for r in job.ranks if node_of(job, r) == switch.node}


def _undone(job: Job, switch: Switch) -> Job:
    return replace(job, switch=None, tried=(*job.tried, (switch.node, switch.member.id))[-32:])


def _swap_when_settled(job: Job, switch: Switch, here: Facts, outlook: Outlook, now: float) -> Decision:
    """Everybody stands at the fence. One that follows may need a moment more; one that died is not waited for."""
    wanted = _to_be_switched(job, switch)
    verdict = judge(switch, outlook, outlook.stand_ins, wanted, now)
    if verdict.word == "undo":
        why = f"{verdict.why}; the switch is undone, and all go on as they were"
        incident = job.incident.decided(job.incident.policy, why) if job.incident is not None else None
        return Decision(replace(_undone(job, switch), incident=incident), (why,))
    if settled(outlook.stand_ins, wanted, job.generation) or 0 < switch.settle_until <= now:
        amid = any(f.scope is Scope.OUTSIDE for f in here.values()) and any(_is_past(here[r]) for r in wanted)
        if amid and not hold_all(outlook.stand_ins, wanted, job.generation):
            # One may lack the result of a collective between steps that only the rank to be replaced can tell.
            later = replace(switch, swapping=False, settle_until=0.0)
            return Decision(replace(job, switch=later), ("some ranks are between two steps; the swap is put off",))
        return _swap(job, here, now)
    if not switch.settle_until:
        until = now + SETTLE_S + job.limits.steps_s
        return Decision(replace(job, switch=replace(switch, settle_until=until), deadline=until))
    return Decision(job)


def _is_past(f: RankFacts) -> bool:
    """It has run the code after its last block."""
    return f.begun >= f.step


def _swap(job: Job, here: Facts, now: float) -> Decision:
    """Everybody stands at the fence: the stand-in's processes are the ranks from now on."""
    switch = job.switch
    assert switch is not None
    ranks = tuple(r for r in job.ranks if node_of(job, r) == switch.node)
    why = f"{switch.member.name} holds node {switch.node} now"
    new = replace(
        job,
        places=tuple(switch.member if i == switch.node else m for i, m in enumerate(job.places)),
        incarnations=tuple(i + 1 if r in ranks else i for r, i in enumerate(job.incarnations)),
        moved=job.moved + len(ranks),
        switch=None,
        switched=ranks,
        past=tuple((r, here[r].begun) for r in ranks),
        deadline=now + job.limits.pause_s + job.limits.steps_s,
    )
    return Decision(new, (why,))


# ---------------------------------------------------------------------------------------------------- keeping a copy


def _climb(job: Job, now: float, why: str) -> Decision:
    """Nothing cheaper can cure this. Keep a copy that survives, where that is allowed, and start everybody again."""
    ending = _ending(job)
    if not ending:
        return _restart(job, now, why)
    assert job.incident is not None
    what = "saving a surviving copy" if ending == Policy.DUMP.value else "keeping a surviving copy in memory"
    text = f"{why}; {what}"
    new = _fenced(replace(job, ending=ending, incident=job.incident.decided(ending, text)), now)
    return Decision(new, (text,))


def _ending(job: Job) -> str:
    if job.ending or not job.library or not job.begun:
        return ""
    if Policy.DUMP in job.policies:
        return Policy.DUMP.value
    in_place = Policy.RETRY in job.policies or Policy.RECOVER_IN_PLACE in job.policies
    return RELOAD if in_place and None not in job.places and not _verdict(job) else ""  # memory is lost with a node


def _fenced(job: Job, now: float) -> Job:
    """Everybody who lives goes to the fence. During a pause they are on their way already."""
    return replace(
        job,
        phase=Phase.PAUSING,
        generation=job.generation if job.phase is Phase.PAUSING else _next(job),
        puzzled_until=0.0,
        agreement=None,
        deadline=now + job.limits.pause_s + job.limits.steps_s,
    )


def _stop(job: Job, now: float) -> Decision:
    """The job is to end. Where a copy may be kept for the next start, it is."""
    if job.phase is Phase.SAVING:
        return Decision(replace(job, ending=STOP), ("the job ends when the copy is written",))
    held = job.phase in (Phase.PAUSING, Phase.RUNNING) or (job.phase is Phase.FORMING and not _is_load(job))
    if Policy.DUMP in job.policies and job.library and job.begun and held:
        return Decision(_fenced(replace(job, ending=STOP), now), ("the job is to end; saving the last committed step",))
    return Decision(replace(job, phase=Phase.STOPPED, ending=STOP, deadline=None, reason="stopped"))


def _gather(job: Job, facts: Facts, now: float, late: bool = False) -> Decision:
    """Once the living stand at the fence, agree on the step to keep. The dead count by what they had published."""
    here = current(job, facts)
    condemned = _condemned(job)
    standing = {r: f for r, f in here.items() if f.stage is Stage.PAUSED and f.generation == job.generation}
    begun = (Stage.FORMED, Stage.READY, Stage.TRAINING, *_THROUGH, Stage.PAUSED)  # what is known may be old news
    coming = [r for r, f in here.items() if r not in standing and r not in condemned and f.stage in begun]
    if coming and not late:
        return Decision(job)
    patience = job.incident.opened_at + job.limits.mend_s if job.incident is not None else now + job.limits.pause_s
    if coming and now < patience and all(here[r].progress.section for r in coming):
        return Decision(replace(job, deadline=patience))  # slowness is legal there
    able = {r: f for r, f in standing.items() if f.scope is not Scope.SETUP}
    copies = [
        _copy(able[r], job.generation)
        if r in able
        else Copy(r, None, False, False, facts[r].local_steps if r in facts else ())
        for r in job.ranks
    ]
    outcome = agree(copies)
    if isinstance(outcome, NoAgreement):
        return _not_saved(job, now, outcome.why)
    why = f"saving step {outcome.step}" if job.ending != RELOAD else f"keeping step {outcome.step} in memory"
    incident = job.incident.marked("pause", now).decided(job.incident.policy, why) if job.incident else None
    new = replace(
        job,
        phase=Phase.SAVING,
        agreement=outcome,
        # Some may have run collectives that others have still to come to: then all run them once more.
        between=any(f.between > 0 or f.scope is Scope.OUTSIDE for f in able.values())
        and any(f.begun < outcome.step for f in facts.values()),
        incident=incident,
        deadline=now + job.limits.save_s,
    )
    return Decision(new, (why,))


def _condemned(job: Job) -> set[int]:
    """Ranks that are dead, or taken for dead."""
    faults = job.incident.faults if job.incident is not None else ()
    return {f.rank for f in faults if _needs_new_process(f) and job.incarnations[f.rank] == f.incarnation}


def savers(job: Job, facts: Facts) -> dict[int, int]:
    """Which rank of each node copies the shared state: node -> rank. Only those who stand at the fence with it can."""
    assert job.agreement is not None
    chosen: dict[int, int] = {}
    for rank in sorted(job.agreement.sources):
        f = current(job, facts).get(rank)
        if f is not None and f.stage is Stage.PAUSED and f.generation == job.generation:
            chosen.setdefault(f.node, rank)
    return chosen


def _saving(job: Job, facts: Facts, now: float) -> Decision:
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
            return _stopped(job, f"stopped; step {step} {where}")
        return _restart(job, now, f"step {step} {where}", job.ending)
    failed = next((f.save_error for f in everybody if f.save_error), "")
    if failed:
        return _not_saved(job, now, failed)
    if not from_nodes and not any(step in f.memory for f in everybody):
        return _not_saved(job, now, "no rank is left that holds the state")
    return Decision(job)


def _not_saved(job: Job, now: float, why: str) -> Decision:
    """The next rung."""
    if job.ending == STOP:
        return _stopped(job, f"stopped; nothing was saved: {why}")
    return _restart(job, now, f"no copy could be kept: {why}")


def _stopped(job: Job, why: str) -> Decision:
    return Decision(replace(job, phase=Phase.STOPPED, deadline=None, reason=why), (why,))


# ---------------------------------------------------------------------------------------------------- ends


def _root(job: Job) -> FaultReport | None:
    return job.incident.root_cause if job.incident is not None else None


def _restart(job: Job, now: float, why: str, policy: str = Policy.EXIT.value) -> Decision:
    """The last rung: every rank starts again, within the budget, and loads the newest copy there is."""
    assert job.incident is not None
    verdict = _verdict(job)
    if verdict:
        return _fail(job, now, verdict[0], f"{why}; {verdict[1]}" if verdict[2] else verdict[1])
    text = f"{why}; restarting all {job.world_size} ranks"
    new = replace(
        job,
        phase=Phase.STARTING,
        through=False,
        generation=_next(job),
        incarnations=tuple(i + 1 for i in job.incarnations),
        attempt=job.attempt + 1,
        restarts_used=job.restarts_used + 1,
        begun=False,
        ending="",
        absent=(),
        joining=(),
        switch=None,
        switched=(),
        past=(),
        puzzled_until=0.0,
        soft=False,
        agreement=None,
        deadline=None,
        waiting=job.waiting if None in job.places else "",
        incident=job.incident.decided(policy, text).marked("pause", now),
        retries_at=(-1, 0),
        progress_step=max(job.progress_step, job.incident.step),
    )
    return Decision(new, (text,))


def _verdict(job: Job) -> tuple[FaultReport, str, bool] | None:
    """Why the job must not be started again: whom it is down to, a sentence, and whether it goes with others."""
    assert job.incident is not None
    if job.restarts_used >= job.limits.max_restarts:
        return job.incident.root_cause, f"the limit of {job.limits.max_restarts} restarts is used up", True
    worst = max(job.incident.faults, key=lambda f: _count(job, f))
    if _count(job, worst) >= IDENTICAL_LIMIT:
        return _first_seen(job, worst), f"the same failure {IDENTICAL_LIMIT} times with no progress", False
    return None


def _fail(job: Job, now: float, root: FaultReport | None, why: str) -> Decision:
    closed = (job.incident.decided(Policy.EXIT.value, why).closed(now),) if job.incident else ()
    last = closed[0].in_short() if closed else job.last
    new = replace(job, phase=Phase.FAILED, root_cause=root, reason=why, incident=None, last=last, deadline=None)
    return Decision(new, (why,), closed)


def _succeed(job: Job, now: float) -> Decision:
    new = replace(_close(job, now), phase=Phase.SUCCEEDED, deadline=None)
    return Decision(new, ("every rank ended well",), _was(job, now))
