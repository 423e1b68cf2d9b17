"""What nodes that stand by get ready for, before anybody is lost.

Which place will fall vacant nobody knows, and a process that has run the script as one rank cannot become another. So
each prepares for as many places as leave it with the processes of any other node, a rank and its spare for each seat;
and together they prepare for as many different places as they can.
"""

from __future__ import annotations

from collections import Counter

from onward.core.facts import Stage
from onward.core.job import Facts, Job, Phase, current
from onward.core.membership import Member, Outlook
from onward.core.policy import Policy

MOST_PLACES = 2
CALM_STEPS = 3  # of every rank, before a node that stands by begins: what the script exchanges in its set-up is known

Ahead = dict[str, tuple[int, ...]]  # agent -> places


def to_prepare(job: Job, facts: Facts, outlook: Outlook) -> Ahead:
    """The places that each node which stands by is to have spares for. What it has begun it goes on with."""
    if Policy.RECOVER not in job.policies or job.phase not in (Phase.RUNNING, Phase.PAUSING, Phase.FORMING):
        return {}
    standbys = _standing_by(job, outlook)
    if not standbys:
        return {}
    places = range(len(job.places))
    found = {m.id: tuple(i for i in outlook.ahead.get(m.id, ()) if i in places)[:MOST_PLACES] for m in standbys}
    if not _is_calm(job, facts):
        return found
    covered = Counter(i for chosen in found.values() for i in chosen)
    for m in standbys:
        while len(found[m.id]) < min(MOST_PLACES, len(places)):
            open_ = [i for i in places if i not in found[m.id]]
            best = min(open_, key=lambda i: (covered[i], i != m.wanted, i))
            found[m.id] = (*found[m.id], best)
            covered[best] += 1
    return found


def _standing_by(job: Job, outlook: Outlook) -> list[Member]:
    busy = {m.id for m in job.places if m is not None} | set(job.given_up)
    if job.switch is not None:
        busy.add(job.switch.member.id)
    return [m for m in outlook.here if m.id not in busy]


def _is_calm(job: Job, facts: Facts) -> bool:
    here = current(job, facts)
    steady = [f.stage is Stage.TRAINING and f.resumed and f.progress.step >= CALM_STEPS for f in here.values()]
    return job.phase is Phase.RUNNING and len(steady) == len(job.ranks) and all(steady)
