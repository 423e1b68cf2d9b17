"""Who holds which place of a job, and who may decide that somebody is gone.

A job has as many places as nodes; an agent holds one, or stands by. A place falls vacant when its agent is lost, and is
given to one that stands by or comes later. That an agent is silent does not mean that it is dead: so a manager decides
anything only while a strict majority of those that were in the last generation follows it, not counting those whom
somebody who must know (the kernel, an operator) has declared gone. Two halves of a cut network never both have it.

Who belongs to the next generation is decided by the last one, and may be all that is left of it. So from the moment a
generation is formed until it is known to run, both must agree to whatever comes next.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from onward.core.facts import RankFacts


@dataclass(frozen=True, slots=True)
class Member:
    """An agent, as it introduces itself."""

    id: str
    host: str = ""
    address: str = "127.0.0.1"  # where its ranks can be reached
    peer: str = ""  # where other agents reach it, ADDRESS|PORT
    manager: str = ""  # where a manager that it hosts would listen, ADDRESS|PORT
    master_port: int = 0  # free there, for scripts that bring their own store
    nproc: int = 1
    nodes: int = 0  # places of the job that it was told to join, 0: not told
    job: str = ""  # the name of that job, empty: not told
    wanted: int = -1  # the place it was told to take, -1: any
    standby: bool = False  # only to replace another
    pod: str = ""  # the uid of the pod it lives in, where there is one
    sole: bool = False  # when it began no other agent lived in that pod, by the word of the kernel there
    boot: str = ""  # which running kernel it lives on
    pid: int = 0
    born: int = 0  # start time of the process, in the kernel's ticks: tells a reused pid

    @property
    def name(self) -> str:
        return f"{self.host} ({self.address})" if self.host else self.id


    def came_after(self, old: Member) -> bool:
        """It was alone when it began in the pod in which `old` had lived: a container that was started again.

        So `old` is dead. Two clocks are not compared: after a reboot the kernel's ticks begin anew.
        """
        same_place = self.id != old.id and bool(self.pod) and self.pod == old.pod
        same_clock = self.boot.partition("pid:")[0] == old.boot.partition("pid:")[0]
        return self.sole and same_place and same_clock and self.born > old.born


Places = tuple[Member | None, ...]


def misfit(m: Member, nodes: int, nproc: int, job: str) -> str:
    """How what an agent was told differs from the job it wants to join; empty when it fits."""
    told = []
    if m.job and job and m.job != job:
        told.append(f"it wants to join the job {m.job!r}, this one is {job!r} (--job-name, or --rdzv-id)")
    if m.nodes and m.nodes != nodes:
        told.append(f"it was told of {m.nodes} nodes, the job has {nodes} (--nnodes)")
    if m.nproc != nproc:
        told.append(f"it has {m.nproc} ranks a node, the job has {nproc} (--nproc-per-node)")
    return "; ".join(told)


@dataclass(frozen=True)
class Outlook:
    """What is known about agents, as of now."""

    deaf: bool = False  # some agent has not been heard for a while, and is not given up yet
    here: tuple[Member, ...] = ()  # connected and fit for a place, the best first
    following: frozenset[str] = frozenset()  # lately heard, and have taken the orders of this term and phase
    gone: frozenset[str] = frozenset()  # dead by the word of somebody who must know
    stopping: bool = False  # somebody wants the whole job to end
    seat: str = ""  # the agent that hosts the manager
    lacking_s: float = 0.0  # for how long there has been no majority
    stand_ins: Mapping[int, RankFacts] = field(default_factory=dict)  # rank -> its process on the stand-in of a switch
    sub_health: Mapping[int, str] = field(default_factory=dict)  # node -> why it is worse than it should be
    kept: Mapping[int, int] = field(default_factory=dict)  # rank -> newest step whose local state some agent keeps
    ahead: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # standby -> places it has spares for
    slow: Mapping[int, str] = field(default_factory=dict)  # rank -> why it is called slow; its node is in `sub_health`


ALONE = Outlook()


ALL_VOTE = 64  # with more agents than this, some vote for all
COUNCIL = 15


def council(members: Sequence[Member]) -> tuple[Member, ...]:
    """Those who vote, and hold the record of the job. Every part of a large job is among them."""
    if len(members) <= ALL_VOTE:
        return tuple(members)
    return tuple(members[i * len(members) // COUNCIL] for i in range(COUNCIL))


def facts_s(nodes: int) -> float:
    """How often an agent speaks when it has nothing new to say: so many cannot all speak ten times a second."""
    return min(5.0, max(0.1, nodes / 2000.0))


def beat_s(nodes: int) -> float:
    """How often a manager that has nothing to say shows that it is there: three times before it is taken for gone."""
    return min(2.0, max(1.0, facts_s(nodes)))


def index_of(places: Places, agent: str) -> int:
    """The place that `agent` holds, -1 for none."""
    return next((i for i, m in enumerate(places) if m is not None and m.id == agent), -1)


def fill(
    places: Places, here: Sequence[Member], starting: bool = False, ahead: Mapping[str, tuple[int, ...]] | None = None
) -> Places:
    """Give vacant places to agents that have none: first the ones that were told which to take, then those that have
    prepared for it (`ahead`), then the others.

    While a job is starting, agents that are only to replace others are passed over.
    """
    placed = {m.id for m in places if m is not None}
    free = [m for m in here if m.id not in placed and not (starting and m.standby)]
    filled: list[Member | None] = list(places)
    for m in free:
        if 0 <= m.wanted < len(filled) and filled[m.wanted] is None:
            filled[m.wanted] = m
    taken = {m.id for m in filled if m is not None}
    rest = [m for m in free if m.id not in taken and (m.wanted < 0 or not starting)]
    for i, holder in enumerate(filled):
        ready = next((m for m in rest if ahead is not None and i in ahead.get(m.id, ())), None)
        if holder is None and ready is not None:
            rest.remove(ready)
            filled[i] = ready
    for i, holder in enumerate(filled):
        if holder is None and rest:
            filled[i] = rest.pop(0)
    return tuple(filled)


@dataclass(frozen=True)
class Vote:
    """Whether a generation may be opened without those who do not answer."""

    enough: bool
    why: str = ""
    missing: tuple[str, ...] = field(default_factory=tuple)


@dataclass(frozen=True)
class Electorate:
    """Those without whose majority nothing may be decided."""

    members: tuple[Member, ...]
    seat: str = ""  # the agent that hosted the manager: with an even number, its vote counts twice
    term: int = 0  # of the manager that chose them

    def weight(self, m: Member) -> int:
        """Bound to an agent, not to the manager there: a vote must be remembered by whoever gave it."""
        first = self.seat if any(m.id == self.seat for m in self.members) else self.members[0].id
        return 2 if len(self.members) % 2 == 0 and m.id == first else 1


def vote(electorates: Sequence[Electorate], outlook: Outlook) -> Vote:
    """Whether each electorate has a majority that follows. Where all are gone, nobody is left who could know."""
    for e in electorates:
        counted = [m for m in e.members if m.id not in outlook.gone]
        votes = sum(e.weight(m) for m in counted if m.id in outlook.following)
        seats = sum(e.weight(m) for m in counted)
        if 2 * votes <= seats:
            missing = tuple(m.name for m in counted if m.id not in outlook.following)
            who = ", ".join(missing) or "anybody"
            return Vote(False, f"NoQuorum: {votes} of {seats} votes; no word from {who}", missing)
    return Vote(True)


def nobody_left(electorates: Sequence[Electorate], gone: Collection[str]) -> bool:
    """All who had a vote are dead, so there will never be a majority: who is left cannot know what they decided."""
    return any(all(m.id in gone for m in e.members) for e in electorates)
