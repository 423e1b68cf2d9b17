"""Carrying out a hot switch (`switch` says when): beside the running job, and then at the fence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onward.core.facts import FaultReport, RankFacts, Scope
from onward.core.fence import called_softly, fence_by
from onward.core.job import Decision, Facts, Job, Phase, current, node_of, renewed
from onward.core.membership import Outlook
from onward.core.switch import CONNECT_S, SETTLE_S, Switch, choose, group_of, hold_all, judge, settled
from onward.core.words import ranks_named

HOT_SWITCH = "hot-switch"


def look_for_switch(job: Job, facts: Facts, outlook: Outlook, now: float) -> Decision:
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
    if not job.switch.connect_until:
        return Decision(replace(job, switch=replace(job.switch, connect_until=now + CONNECT_S)))
    if now < job.switch.connect_until and not _is_connected(job, job.switch, facts, outlook):
        return Decision(job)
    rank = min(wanted)
    fault = FaultReport("switch", rank, job.incarnations[rank], text=job.switch.why, at=now)
    called = called_softly(job, facts, fault, HOT_SWITCH, f"{verdict.why}; swapping at the end of the step", now)
    return Decision(replace(called, switch=replace(job.switch, swapping=True, settle_until=0.0)), (verdict.why,))


def _is_connected(job: Job, switch: Switch, facts: Facts, outlook: Outlook) -> bool:
    """All who stay and all of the stand-in are in the group that is to be."""
    wanted, name = _to_be_switched(job, switch), group_of(switch, job.generation)
    staying = [f for r, f in current(job, facts).items() if r not in wanted]
    coming = [f for r, f in outlook.stand_ins.items() if wanted.get(r) == f.incarnation]
    return len(staying) + len(coming) == len(job.ranks) and all(f.joined == name for f in (*staying, *coming))


def just_swapped(job: Job, outlook: Outlook) -> Facts:
    """Just swapped: what was known of them as stand-ins is what is known of the ranks, until more is heard."""
    return {r: f for r, f in outlook.stand_ins.items() if r in job.switched and f.incarnation == job.incarnations[r]}


def _to_be_switched(job: Job, switch: Switch) -> dict[int, int]:
    """The stand-in's incarnations, by rank."""
    return {r: job.incarnations[r] + 1 for r in job.ranks if node_of(job, r) == switch.node}


def _undone(job: Job, switch: Switch) -> Job:
    return replace(job, switch=None, tried=(*job.tried, (switch.node, switch.member.id))[-32:])


def swap_when_settled(job: Job, switch: Switch, here: Facts, outlook: Outlook, now: float) -> Decision:
    """Everybody stands at the fence. One that follows may need a moment more; one that died is not waited for."""
    wanted = _to_be_switched(job, switch)
    verdict = judge(switch, outlook, outlook.stand_ins, wanted, now)
    if verdict.word == "undo":
        return _undone_at_the_fence(job, switch, verdict.why)
    if verdict.word == "wait":
        return Decision(replace(job, deadline=switch.heard_by))
    late, only = 0 < switch.settle_until <= now, _known_to_nobody_else(job, wanted, here, outlook)
    if late and only:
        return _undone_at_the_fence(job, switch, f"what only {ranks_named(only)} can know is kept nowhere else")
    if late or (not only and settled(outlook.stand_ins, wanted, job.generation)):
        amid = any(f.scope is Scope.OUTSIDE for f in here.values()) and any(_is_past(here[r]) for r in wanted)
        if amid and not hold_all(outlook.stand_ins, wanted, job.generation):
            # One may lack the result of a collective between steps that only the rank to be replaced can tell.
            later = replace(switch, swapping=False, settle_until=0.0, connect_until=0.0)
            return Decision(replace(job, switch=later), ("some ranks are between two steps; the swap is put off",))
        return _swap(job, here, now)
    if not switch.settle_until:
        until = now + SETTLE_S + job.limits.steps_s
        return Decision(replace(job, switch=replace(switch, settle_until=until), deadline=until))
    return Decision(job)


def _undone_at_the_fence(job: Job, switch: Switch, what: str) -> Decision:
    why = f"{what}; the switch is undone, and all go on as they were"
    incident = job.incident.decided(job.incident.policy, why) if job.incident is not None else None
    return Decision(replace(_undone(job, switch), incident=incident), (why,))


def _known_to_nobody_else(job: Job, wanted: Mapping[int, int], here: Facts, outlook: Outlook) -> list[int]:
    """Ranks to be replaced whose newest local state neither the stand-in nor an agent elsewhere has."""
    step = max(f.step for f in here.values())
    there = {r: f for r, f in outlook.stand_ins.items() if f.generation == job.generation and f.step >= 0}
    newest = {r: max((s for s in here[r].local_steps if s <= step), default=-1) for r in wanted}
    return [r for r, new in newest.items() if r not in there and outlook.kept.get(r, -1) < new]


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
        incarnations=renewed(job, ranks),
        moved=job.moved + len(ranks),
        switch=None,
        switched=ranks,
        past=tuple((r, here[r].begun) for r in ranks),
        deadline=fence_by(job, now),
    )
    return Decision(new, (why,))
