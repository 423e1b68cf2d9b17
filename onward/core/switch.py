"""Hot switch: a node that is worse than it should be gives its place to another, while it still trains.

A stand-in runs the script up to its first step beside the running job, and then follows: it is given the state, and
runs the same steps with the results that the collectives had there. Only when all its processes keep up do the others
stop, at the end of a step; the stand-in's ranks take over, and hold everything already. One that cannot follow is given
the state at the swap: shared from replicas, local from the old ranks. What goes wrong before that is undone, and the
job was never disturbed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from onward.core.facts import RankFacts, Stage
from onward.core.membership import Member, Outlook, Places
from onward.core.words import ranks_named

MOST_TRIES = 3  # of one node, before it is left alone
FOLLOW_S = 60.0  # more, for one that has come up to take over the state and catch up
CONNECT_S = 3.0  # for the group that is to be; without it there is a swap as well
HEARD_S = 2.0  # for the stand-in to find a new manager
SETTLE_S = 2.0  # at the swap: for one that follows to come to where the others stand


@dataclass(frozen=True)
class Switch:
    """One that is under way."""

    node: int
    member: Member  # the stand-in
    why: str  # what is wrong with the node
    until: float  # by then the stand-in must be ready
    swapping: bool = False  # it is ready: all stop for it at the end of their step
    settle_until: float = 0.0  # all others stand at the fence; 0: not yet
    connect_until: float = 0.0  # it is ready, and all connect the group that is to be, while they train; 0: not yet
    heard_by: float = 0.0  # for a new manager: by then the stand-in must have found it


@dataclass(frozen=True)
class Verdict:
    """What becomes of a switch: "" (go on), "wait" (for a word of the stand-in), "ready" or "undo"."""

    word: str = ""
    why: str = ""


def choose(
    places: Places, outlook: Outlook, tried: Sequence[tuple[int, str]], now: float, limit_s: float
) -> Switch | None:
    """The switch to begin, if a node is sub-healthy and somebody could stand in for it."""
    for node, why in sorted(outlook.sub_health.items()):
        if places[node] is None or sum(n == node for n, _ in tried) >= MOST_TRIES:
            continue
        placed = {m.id for m in places if m is not None}
        free = [m for m in outlook.here if m.id not in placed and (node, m.id) not in tried]
        if free:
            ready = [m for m in free if node in outlook.ahead.get(m.id, ())]
            return Switch(node, (ready or free)[0], why, now + limit_s)
    return None


def judge(
    switch: Switch,
    outlook: Outlook,
    facts: Mapping[int, RankFacts],
    incarnations: Mapping[int, int],
    now: float,
    followed: Collection[int] = (),
) -> Verdict:
    """`facts`: of the stand-in's own processes; `incarnations`: those that it is to start, by rank; `followed`: ranks
    that can be followed."""
    name = switch.member.name
    if switch.node not in outlook.sub_health:
        return Verdict("undo", f"node {switch.node} is well again")
    if switch.member.id not in {m.id for m in outlook.here}:
        if now < switch.heard_by and switch.member.id not in outlook.gone:
            return Verdict("wait")
        return Verdict("undo", f"{name}, which was to stand in for node {switch.node}, is gone or not fit")
    here = {r: f for r, f in facts.items() if incarnations.get(r) == f.incarnation}
    dead = [r for r, f in here.items() if f.stage is Stage.EXITED]
    if dead:
        return Verdict("undo", f"rank {dead[0]} of the stand-in ended before it was ready")
    if len(here) == len(incarnations) and all(f.stage is Stage.PARKED for f in here.values()):
        waits = [r for r, f in here.items() if r in followed and not f.follows]
        if waits and now < switch.until + FOLLOW_S:
            return Verdict()
        follows = [r for r, f in here.items() if f.follows == "yes"]
        how = f"follows {ranks_named(follows)}, and is ready" if follows else "is ready"
        return Verdict("ready", f"{name} {how} to take over node {switch.node}")
    if now >= switch.until:
        return Verdict("undo", f"{name} was not ready in time to stand in for node {switch.node}")
    return Verdict()


def group_of(switch: Switch, generation: int) -> str:
    """What the group is called in which the stand-in has taken its place. No other has that name."""
    return f"{generation}/{switch.node}/{switch.member.id}" if switch.connect_until else ""


def settled(facts: Mapping[int, RankFacts], incarnations: Mapping[int, int], generation: int) -> bool:
    """All others stand at the fence: whether those of the stand-in that follow have come there too, or given up."""
    here = [f for r, f in facts.items() if incarnations.get(r) == f.incarnation and f.stage is Stage.PARKED]
    return all(f.follows != "yes" or f.generation == generation for f in here)


def hold_all(facts: Mapping[int, RankFacts], incarnations: Mapping[int, int], generation: int) -> bool:
    """The stand-in's processes stand where their ranks do, and know what these know."""
    here = [facts[r] for r in incarnations if r in facts and incarnations[r] == facts[r].incarnation]
    return len(here) == len(incarnations) and all(f.step >= 0 and f.generation == generation for f in here)
