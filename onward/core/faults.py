"""Which faults are to be acted on, and how often each has come back.

A fault is reported once and seen many times, and one death shows in many places: here it is told apart what is news,
what is an echo of another's end, and what has happened before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onward.core.facts import ENDED_INSIDE, FaultReport, RankFacts, Stage
from onward.core.incident import Incident
from onward.core.job import Facts, Job, Phase, Repeat, all_are, current, furthest

CALLS = ("switch", "join")  # what opens an incident and is no failure
IDENTICAL_LIMIT = 3  # the same failure with no step in between
UNREACHED_LIMIT = 10  # starts of all in a row that end because ranks do not reach one another
UNREACHED = ("unreached", -1, "")  # stands for what each says of it, in words that differ
LONGEST_TRACE = 8000  # letters; the record that holds it is sent with all orders
LOGIC = (  # errors that come of the script's own text
    "ValueError",
    "TypeError",
    "KeyError",
    "IndexError",
    "AttributeError",
    "NameError",
    "UnboundLocalError",
    "AssertionError",
    "ZeroDivisionError",
    "NotImplementedError",
    "ImportError",
    "ModuleNotFoundError",
    "RecursionError",
)
EXIT_AT, LATE_AT = -1.0, -2.0  # stand for the time of faults that nobody reported


def new_faults(job: Job, facts: Facts) -> tuple[FaultReport, ...]:
    """Faults of current incarnations that nobody has acted on yet."""
    if job.phase is Phase.LEAVING:
        return ()  # all scripts have ended: there is nothing that could be done again
    found = []
    handled = set(job.handled)
    known = condemned(job) if job.ending else set()  # nobody is replaced any more, so they stay what they are
    for rank, f in sorted(current(job, facts).items()):
        if rank in known:
            continue
        if f.fault is not None and (rank, f.incarnation, f.fault.at) not in handled:
            found.append(f.fault)
        elif (
            f.stage is Stage.EXITED
            and (not f.ended_well or job.phase in (Phase.PAUSING, Phase.FORMING))  # it was needed once more
            and (rank, f.incarnation, EXIT_AT) not in handled
            and (f.fault is None or f.fault.retryable)
        ):
            found.append(exit_fault(f, facts))
    if not found:
        behind = [f for f in ended_behind(job, facts) if (f.rank, f.incarnation, EXIT_AT) not in handled]
        found = [exit_fault(f, facts) for f in behind]
    return tuple(sorted([*_left_early(job, facts, found), *found], key=_may_be_an_echo))


def ended_behind(job: Job, facts: Facts) -> list[RankFacts]:
    """Where all scripts have ended: who has done fewer steps than another, or never held what was done."""
    if not job.library or not all_are(job, facts, has_ended):
        return []
    here = current(job, facts)
    last = max(0 if job.begun else -1, *(f.ended_at for f in here.values()))
    return [f for _, f in sorted(here.items()) if f.ended_at < last]


def has_ended(f: RankFacts) -> bool:
    """Its script has come to its end, in its own words or by how its process went."""
    return f.stage is Stage.LEFT or (not f.alive and f.ended_well)


def _left_early(job: Job, facts: Facts, found: Sequence[FaultReport]) -> list[FaultReport]:
    """Where connections break and nobody has failed, whoever has ended well too early is what they broke on."""
    if not found or not job.library or job.phase is not Phase.RUNNING or any(not _is_echo(f) for f in found):
        return []
    gone = [f for _, f in sorted(current(job, facts).items()) if not f.alive and f.ended_well]
    return [exit_fault(f, facts) for f in gone if (f.rank, f.incarnation, EXIT_AT) not in job.handled]


def echoes_of_a_call(job: Job, faults: Sequence[FaultReport]) -> bool:
    """All were called to the fence for no failure, and who has not heard of that yet finds its connections closed."""
    if job.phase is not Phase.PAUSING or job.incident is None or any(f.kind not in CALLS for f in job.incident.faults):
        return False
    return all(f.kind == "exception" and _is_echo(f) for f in faults)


def left_behind(job: Job, facts: Facts, faults: Sequence[FaultReport]) -> bool:
    """While the next group forms, these are of the one before: who was in it has not heard yet that it is over."""
    there = {r for r, f in facts.items() if f.generation >= job.generation}
    return job.phase is Phase.FORMING and all(
        f.kind == "exception" and _is_echo(f) and f.rank not in there for f in faults
    )


def _is_echo(fault: FaultReport) -> bool:
    return fault.retryable == "communication"


def _may_be_an_echo(fault: FaultReport) -> bool:
    """Of those that are seen at once: who was killed from outside did not die of what befell another.

    An abort can be either: libraries end the process so when they lose a peer.
    """
    return fault.kind not in ("signal", "node") or fault.text == signal_name(6)


def exit_fault(f: RankFacts, facts: Facts) -> FaultReport:
    """What the end of a process says by itself."""
    code = f.exit_code if f.exit_code is not None else 0
    kind = "signal" if code < 0 else "exit"
    text = signal_name(-code) if code < 0 else f"exit code {code}"
    if f.exit_code == 0 and not f.ended_well:
        text = ENDED_INSIDE
    others = max((other.progress.step for rank, other in facts.items() if rank != f.rank), default=-1)
    return FaultReport(
        kind=kind,
        rank=f.rank,
        incarnation=f.incarnation,
        step=f.progress.step,
        text=text,
        at=EXIT_AT,
        since_s=f.dead_s if code != 0 else 0.0,
        others=others,
    )


def signal_name(number: int) -> str:
    """As people know it, the same on every machine."""
    names = {1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL"}
    names |= {10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU"}
    return names.get(number, f"signal {number}")


def late_faults(job: Job, here: Facts, ranks: list[int], kind: str, text: str) -> tuple[FaultReport, ...]:
    """Of ranks that have not done in time what was wanted of them."""

    def fault(r: int) -> FaultReport:
        step = here[r].progress.step if r in here else -1
        echo = "communication" if kind == "stall" else ""
        return FaultReport(kind, r, job.incarnations[r], step=step, text=text, retryable=echo, at=LATE_AT)

    return tuple(fault(r) for r in ranks)


def needs_new_process(f: FaultReport) -> bool:
    """Its process is dead, or of no use any more."""
    ended = ("exit", "signal", "hang", "start", "node", "restart")
    return f.kind in ended or (f.kind == "exception" and not f.retryable)


def condemned(job: Job) -> set[int]:
    """Ranks that are dead, or taken for dead."""
    faults = job.incident.faults if job.incident is not None else ()
    return {f.rank for f in faults if needs_new_process(f) and job.incarnations[f.rank] == f.incarnation}


def open_incident(job: Job, faults: tuple[FaultReport, ...], facts: Facts, now: float) -> Job:
    """The incident of these faults begins, or one that is open has them too."""
    if job.incident is not None:
        return replace(job, incident=job.incident.merged(faults))
    number = job.incidents + 1
    since_s = max(f.since_s for f in faults)
    incident = Incident(number=number, faults=faults, step=furthest(facts), opened_at=now - since_s)
    return replace(job, incident=incident.marked("detect", now), incidents=number)


def remember(job: Job, faults: tuple[FaultReport, ...]) -> Job:
    """These have been acted on, and have been seen once more."""
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


def remember_unreached(job: Job) -> Job:
    """All start again because of what ranks say of their connections alone."""
    assert job.incident is not None
    root = job.incident.root_cause
    if not _is_echo(root):
        return job
    old = next((r for r in job.repeats if r.signature == UNREACHED), Repeat(UNREACHED, 0, -1, (), root))
    others = tuple(r for r in job.repeats if r.signature != UNREACHED)
    return replace(job, repeats=(*others, replace(old, count=old.count + 1, generation=job.generation))[-32:])


def never_reached(job: Job) -> FaultReport | None:
    """What was said at first, where ranks have not reached one another in so many starts that they never will."""
    assert job.incident is not None
    old = next((r for r in job.repeats if r.signature == UNREACHED), None)
    gives_up = old is not None and old.count >= UNREACHED_LIMIT and _is_echo(job.incident.root_cause)
    return old.first if old is not None and gives_up else None


def times_seen(job: Job, fault: FaultReport) -> int:
    """With no progress in between."""
    return next((r.count for r in job.repeats if r.signature == fault.signature()), 0)


def first_seen(job: Job, fault: FaultReport) -> FaultReport:
    """The same failure, when nothing had gone wrong before it."""
    return next((r.first for r in job.repeats if r.signature == fault.signature() and r.first is not None), fault)


def own_bug(job: Job, faults: tuple[FaultReport, ...]) -> FaultReport | None:
    """An error of the script, which no new process would cure."""
    errors = [f for f in faults if f.kind == "exception" and not f.retryable]
    return next((f for f in errors if times_seen(job, f) >= 2 or (_is_logic(f) and _seen_by_all(job, f))), None)


def _is_logic(fault: FaultReport) -> bool:
    """It says that the script is wrong, not that something outside of it is, which may be well the next time."""
    return fault.text.partition(":")[0] in LOGIC


def _seen_by_all(job: Job, fault: FaultReport) -> bool:
    """Every rank at the same step: no process, device or node is to blame."""
    ranks = next((r.ranks for r in job.repeats if r.signature == fault.signature()), ())
    return len(job.ranks) > 1 and set(ranks) >= set(job.ranks)


def too_often(job: Job, faults: tuple[FaultReport, ...]) -> FaultReport | None:
    """One that curing does not help against."""
    return next((f for f in faults if times_seen(job, f) > IDENTICAL_LIMIT), None)
