"""The composing of orders: all that is wanted of an agent, out of what is wanted of the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from onward.core.agreement import Part
from onward.core.checkpoints import Grant
from onward.core.conditions import Condition
from onward.core.facts import RankFacts
from onward.core.job import RELOAD, Job, Phase, age, current, node_of
from onward.core.membership import ALL_VOTE
from onward.core.policy import Policy
from onward.core.switch import group_of
from onward.manager.record import record_of
from onward.manager.roll import Roll
from onward.wire.messages import Form, KeptAt, Orders, RankOrder, Save, Want

_FORMED = (Phase.FORMING, Phase.RUNNING, Phase.FINISHING, Phase.LEAVING, Phase.SUCCEEDED)
_VERDICTS = {Phase.SUCCEEDED: 0, Phase.FAILED: 1, Phase.STOPPED: 143}
_WANTS: dict[Phase, Want] = {
    Phase.STARTING: "start",
    Phase.RUNNING: "run",
    Phase.PAUSING: "pause",
    Phase.SAVING: "save",
    Phase.FORMING: "form",
    Phase.FINISHING: "finish",
    Phase.LEAVING: "leave",
    Phase.SUCCEEDED: "stop",  # of whom nothing more comes: all others have left
    Phase.FAILED: "stop",
    Phase.STOPPED: "stop",
}


@dataclass(frozen=True)
class Mandate:
    """What the manager itself adds to the job. With every change of it the version grows."""

    version: int
    seat: str
    base: tuple[int, ...]  # age of the record that this manager has gone on from
    granted: bool  # a majority has followed it
    final: bool  # all may know how the job ended, and leave
    grant: Grant | None = None
    savers: Mapping[int, int] = field(default_factory=dict)  # node -> rank
    conditions: tuple[Condition, ...] = ()
    ahead: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # agent that stands by -> places


@dataclass(frozen=True)
class Draft:
    """What goes to every agent alike, made up once for each version of the orders."""

    mandate: Mandate
    job: Job
    common: Orders
    record: bytes
    holders: frozenset[str]  # agents that hold the record: those who vote; empty: all
    givers: dict[int, int]  # who is given state by whom
    serves: Counter[int]  # how many each gives to


def draft(mandate: Mandate, job: Job, facts: Mapping[int, RankFacts]) -> Draft:
    """What the orders of all agents have in common."""
    members = [m for m in job.places if m is not None]
    voters = [m for e in job.voters for m in e.members]
    few = len(members) <= ALL_VOTE
    doors = [m.manager for m in (members if few else voters) if m.manager]
    first = members[0] if members else None
    givers = _givers(job)
    common = Orders(
        term=job.term,
        seat=mandate.seat,
        version=mandate.version,
        age=[int(n) for n in age(job)],
        base=[int(n) for n in mandate.base],
        granted=mandate.granted,
        generation=job.generation,
        ranks=[],
        world_size=job.world_size,
        members=len(job.ranks),
        step=max((f.progress.step for f in facts.values()), default=0),
        run=job.run,
        attempt=job.attempt,
        phase=job.phase.value,
        exit_code=_VERDICTS.get(job.phase) if mandate.final else None,
        reason=job.reason,
        root_cause=job.root_cause,
        store=members[0].peer if members and (job.phase in _FORMED or job.soft) else "",
        master=f"{first.address}|{first.master_port}" if first is not None else "",
        managers=list(dict.fromkeys(doors)),
        waiting=job.waiting,
        conditions=list(mandate.conditions),
    )
    return Draft(
        mandate=mandate,
        job=job,
        common=common,
        record=record_of(job),
        holders=frozenset() if few else frozenset(m.id for m in voters),
        givers=givers,
        serves=Counter(givers.values()),
    )


def _givers(job: Job) -> dict[int, int]:
    a = job.agreement
    if a is None:
        return {}
    receivers = [r for r, p in a.parts.items() if p is Part.RECEIVE]
    return {r: a.sources[i % len(a.sources)] for i, r in enumerate(receivers)}


def orders(d: Draft, agent: str, facts: Mapping[int, RankFacts], roll: Roll) -> Orders:
    """All that is wanted of `agent`, now."""
    job, mandate = d.job, d.mandate
    node = roll.place(job, agent)
    under_way = job.switch if job.phase in (Phase.RUNNING, Phase.PAUSING) else None
    stands_in = under_way is not None and under_way.member.id == agent
    if under_way is not None and stands_in:
        node = under_way.node
    local = job.world_size // max(1, len(job.places))
    ranks = range(node * local, (node + 1) * local) if node >= 0 else range(0)
    ahead = [r for i in mandate.ahead.get(agent, ()) for r in range(i * local, (i + 1) * local)] if node < 0 else []
    return msgspec.structs.replace(
        d.common,
        ranks=[_stand_in_order(job, r, facts) if stands_in else _rank_order(d, r, facts) for r in ranks],
        node=node,
        save=_save(job, node, roll),
        publish=mandate.grant if mandate.grant is not None and mandate.grant.node == node else None,
        job=d.record if not d.holders or agent in d.holders else b"",
        kept_at={} if stands_in else {r: at for r in ranks if (at := kept_at(job, r, roll))},  # before a swap it grows
        ahead=ahead,
        log_at={r: home for r in (ranks if stands_in else ahead) if (home := _home(job, r))} | _told_by(job, ranks),
        doors=roll.doors if agent == mandate.seat else [],
    )


def lost_ranks(job: Job) -> list[int]:
    """Ranks without a node."""
    return [r for r in range(job.world_size) if job.places and job.places[node_of(job, r)] is None]


def _home(job: Job, rank: int) -> str:
    """The agent of the node that has the rank now: it knows what the script exchanged in its set-up."""
    m = job.places[node_of(job, rank)]
    return m.peer if m is not None else ""


def _told_by(job: Job, ranks: Collection[int]) -> dict[int, str]:
    """Of ranks whose node was lost nobody may know what they exchanged in their set-up: what another one did."""
    coming = {*job.absent, *job.arriving}
    untold = [r for r in ranks if r in coming]
    there = next((at for r in job.ranks if r not in coming and (at := _home(job, r))), "") if untold else ""
    return dict.fromkeys(untold, there) if there else {}


def _save(job: Job, node: int, roll: Roll) -> Save | None:
    if job.phase is not Phase.SAVING or job.agreement is None or node < 0:  # one that stands by saves nothing
        return None
    m = job.places[node]
    lost = set(lost_ranks(job)).difference(job.absent)
    adopted = [r for r in sorted(lost) if m is not None and roll.keeper(job, r) == m.id]
    disk = job.ending != RELOAD
    return Save(step=job.agreement.step, disk=disk, again=job.between, reason=job.ending, adopted=adopted)


def _stand_in_order(job: Job, rank: int, facts: Mapping[int, RankFacts]) -> RankOrder:
    """Get ready, follow, and wait."""
    number = job.incarnations[rank] + 1
    there = current(job, facts).get(rank)
    follow = there.feed if there is not None else ""
    return RankOrder(
        rank=rank,
        incarnation=number,
        generation=job.generation,
        want="pause",
        soft=True,
        follow=follow,
        join=_to_join(job),
    )


def _to_join(job: Job) -> str:
    """The group that is to be after a hot switch, while everybody trains."""
    return group_of(job.switch, job.generation) if job.switch is not None and job.phase is Phase.RUNNING else ""


def _rank_order(d: Draft, rank: int, facts: Mapping[int, RankFacts]) -> RankOrder:
    job = d.job
    want = _WANTS[job.phase]
    if rank in job.absent:  # one that prepares to join later
        want = "pause" if job.phase in (Phase.RUNNING, Phase.PAUSING, Phase.FORMING) else "stop"
    if want == "save" and rank not in d.mandate.savers.values():
        want = "pause"  # nothing more is wanted of it
    return RankOrder(
        rank=rank,
        incarnation=job.incarnations[rank],
        generation=job.generation,
        want=want,
        form=form(d, rank, facts) if want in ("form", "run", "save") else None,
        soft=job.soft and want == "pause",
        join=_to_join(job) if job.switch is not None and node_of(job, rank) != job.switch.node else "",
        why=job.incident.why[-1] if job.incident is not None and job.incident.why else "",
    )


def form(d: Draft, rank: int, facts: Mapping[int, RankFacts]) -> Form:
    """How a rank comes into the group of this generation, and to its state."""
    job, a = d.job, d.job.agreement
    partner, members = _partner(job, rank), list(job.ranks) if job.absent else []
    if a is None:
        return Form(world_size=job.world_size, members=members, begin=job.begun, partner=partner)
    part = a.parts[rank]
    fresh = rank in job.joining and part is Part.RECEIVE
    giver = facts.get(d.givers[rank]) if part is Part.RECEIVE else None
    return Form(
        world_size=job.world_size,
        members=members,
        fresh=fresh,
        past=(fresh and not job.between) or any(r == rank and begun >= a.step for r, begun in job.past),
        step=a.step,
        part=part.value,
        source=giver.serve if giver is not None else "",
        serves=d.serves[rank],
        between=job.between,
        through=job.through,
        partner=partner,
        light=a.light,
        joined=a.joined,
        error=_own_error(job, rank),
    )


def _partner(job: Job, rank: int) -> str:
    """Another node keeps a copy of the local state where the loss of a node is to be survived, or where it may be
    switched: a stand-in that cannot follow needs it."""
    node, n = node_of(job, rank), len(job.places)
    if Policy.RECOVER not in job.policies and not job.limits.hot_switch:
        return ""
    others = [job.places[(node + i) % n] for i in range(1, n)]
    return next((m.peer for m in others if m is not None), "")


def _own_error(job: Job, rank: int) -> str:
    faults = job.incident.faults if job.incident is not None else ()
    return next((f.text for f in faults if f.rank == rank and f.kind == "exception" and not f.retryable), "")


def kept_at(job: Job, rank: int, roll: Roll) -> KeptAt | None:
    """The agent that keeps the local state of a rank whose own node has none of it, or only what is older."""
    if (job.phase is not Phase.PAUSING and rank not in job.absent) or rank not in roll.kept or roll.holds(job, rank):
        return None
    peer = roll.keeps_newest(rank)
    return KeptAt(peer, roll.kept[rank]) if peer else None
