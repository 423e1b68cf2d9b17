"""Taking office: from when on a manager may decide for a job, and what it goes on from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onward.core.job import Job, age, new_job
from onward.core.membership import Electorate, Member, Outlook, council, fill, vote
from onward.core.policy import Policy
from onward.core.succession import inherited
from onward.manager.roll import Roll
from onward.manager.settings import ManagerSettings
from onward.wire.messages import AgentFacts

OFFICE_S = 1.5  # a majority is enough to take office when the others have not come after so long


@dataclass(frozen=True)
class Claim:
    """The job, for whoever is in office from now on, or what is waited for."""

    job: Job | None = None
    waiting: str = ""
    last: Job | None = None  # the record it goes on from; None: the job begins
    gone: frozenset[str] = frozenset()  # agents that count as dead


def claim(recorded: Sequence[Job], terms: Sequence[int], settings: ManagerSettings, roll: Roll, now: float) -> Claim:
    """Go on from the newest record any agent holds, or begin, once enough of them are here.

    `terms`: of managers that agents have followed.
    """
    term = max([*terms, *(j.term for j in recorded)]) + 1
    if recorded:
        return go_on(max(recorded, key=age), term, settings, roll, now)
    return _begin(term, settings, roll, now)


def go_on(last: Job, term: int, settings: ManagerSettings, roll: Roll, now: float) -> Claim:
    """The job was under way before."""
    members = [m for m in last.places if m is not None]
    heard = frozenset(roll.seen)
    gone = frozenset(roll.gone | _presumed_dead(last, settings, roll))
    verdict = vote(last.voters, Outlook(following=heard, gone=gone))
    complete = all(m.id in heard or m.id in gone for m in members)
    patient = roll.first_at is not None and now - roll.first_at < OFFICE_S
    if not verdict.enough or (not complete and patient):
        return Claim(waiting=verdict.why or "the other agents")
    return Claim(inherited(replace(last, limits=settings.limits), term, now), last=last, gone=gone)


def _presumed_dead(last: Job, settings: ManagerSettings, roll: Roll) -> set[str]:
    """By the user's word: everybody who is alive has been looking for a manager for so long, and would be here."""
    limit_s = settings.fail_stop_s
    if not limit_s or any(m.lonely_s < limit_s for m in roll.latest.values()):
        return set()
    return {m.id for e in last.voters for m in e.members if m.id not in roll.seen}


def _begin(term: int, settings: ManagerSettings, roll: Roll, now: float) -> Claim:
    s = settings
    places = fill((None,) * s.nodes, roll.here(now), starting=True)
    if any(m.age for m in roll.latest.values()):
        return Claim(waiting="those who hold the record of this job")
    missing, here = places.count(None), [m for m in places if m is not None]
    if missing and not _may_begin_without(missing, here, s, roll, now):
        return Claim(waiting=f"{missing} of {s.nodes} nodes")
    job = new_job(s.world_size, s.policies, s.limits, places)
    voters = (Electorate(council(here), s.seat, term),)
    return Claim(replace(job, term=term, voters=voters, run=s.seat[:8]))


def _may_begin_without(missing: int, here: Sequence[Member], s: ManagerSettings, roll: Roll, now: float) -> bool:
    """Nobody has come to fill the last places for a while, and the job may go on with as few nodes.

    Never with half of them or less, or two halves could begin; and not where a cluster decides when pods start.
    """
    least = max(s.limits.min_nodes, s.nodes // 2 + 1)
    if Policy.ELASTIC not in s.policies or s.nodes - missing < least or any(m.pod for m in here):
        return False
    enough_since = sorted(roll.came_at[m.id] for m in here)[least - 1]
    return now - enough_since >= s.limits.last_call_s


def outranked(message: AgentFacts, job: Job, seat: str, base: tuple[int, ...] | None) -> str:
    """Why an agent's word shows that this manager is not the one to decide; empty when it does not.

    `base`: the age of the record that it goes on from, until it has a majority. It decides from what it was told before
    that; what others have decided since must not be undone.
    """
    other = message.seat not in ("", seat)
    if message.term > job.term or (message.term == job.term and other):
        return f"follows a manager of term {message.term}"
    if message.term < job.term and base is not None and tuple(message.age) > base:
        return "knows of a decision that this manager has not heard of"
    return ""
