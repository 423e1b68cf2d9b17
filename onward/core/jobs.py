"""A job in a cluster, as plain values: what is wanted, what is seen, what is remembered, and what can be done about it.

`reconcile.decide` is a function of these. Nothing here knows how Kubernetes spells any of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

Place: TypeAlias = tuple[str, int]  # role, index: one pod at a time holds it

CREATED, RUNNING, RESTARTING, SUCCEEDED, FAILED = "Created", "Running", "Restarting", "Succeeded", "Failed"
OVER = (SUCCEEDED, FAILED)


# ---------------------------------------------------------------------------------------------------- wanted


@dataclass(frozen=True)
class Role:
    """Pods of one kind: Master, Worker and so on."""

    name: str
    count: int
    restart: str = "Never"  # Never, OnFailure, Always or ExitCode


@dataclass(frozen=True)
class Wanted:
    """What the user asked for, as far as decisions depend on it."""

    namespace: str
    name: str
    uid: str
    roles: tuple[Role, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()  # why it cannot be run at all: (reason, sentence)
    notes: tuple[tuple[str, str], ...] = ()  # what people should be told once: (reason, sentence)
    service: bool = True  # pods meet at an address that has to be there first
    leader: Place | None = None  # it leads to whoever holds this place
    gang: bool = True  # pods wait for a PodGroup
    suspend: bool = False
    backoff_limit: int = 0  # waves of lost pods; 0: no limit
    retry_times: int = 0  # waves of failed pods that are forgiven
    deadline_s: int | None = None
    ttl_s: int | None = None
    clean_pods: str = "Running"  # None, Running or All
    fault_scheduling: str = ""  # pods of a bad node are replaced: grace, force; off: no pod ever is; "": lost ones are
    grace_s: float = 900.0  # a pod that was asked to end is removed after so long
    keeps_others: bool = False  # when a pod is lost the others stay: somebody inside, or nobody, minds
    recovers: bool = False  # somebody inside the pods goes on when one is lost
    elastic: bool = False  # and does so with fewer
    hot_switch: bool = False  # on a node that is worse than it should be, another pod gets ready and takes over
    leaves_sub_health: str = ""  # what is done about a node that is worse than it should be: graceExit or forceExit

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def shape(self) -> str:
        """Pods know of each other by number: another shape is another set of pods."""
        return ",".join(f"{role.name}={role.count}" for role in self.roles)

    @property
    def total(self) -> int:
        return sum(role.count for role in self.roles)

    def places(self) -> Iterator[Place]:
        for role in self.roles:
            for index in range(role.count):
                yield role.name, index

    def role(self, name: str) -> Role:
        return next(role for role in self.roles if role.name == name)


# ---------------------------------------------------------------------------------------------------- seen


@dataclass(frozen=True)
class PodSeen:
    """A pod of this job. One of another owner is never seen, whatever it is called."""

    place: Place | None  # None: one that the job has no use for (any more)
    name: str
    uid: str
    wave: int  # in which it was made
    phase: str = "Pending"
    node: str = ""
    deleting: float | None = None  # by then it should be gone
    exit_code: int | None = None  # of its training container
    text: str = ""  # why it ended, or why it is not placed
    evicted: bool = False  # ended by the cluster, not by its own program
    refused: bool = False  # it has never begun, since its node would not have it
    dismissed: bool = False  # it has ended since it was deleted, well or not
    lingers: bool = False  # what trains in it has ended; others in it run on
    made_at: float = 0.0
    scheduler: str = ""  # who is to find it a node
    stands_in: Place | None = None  # it holds no place, and gets ready to take this one (hot switch)
    outdated: bool = False  # its template was changed since it was made
    index: str = ""  # as it is labelled: that of a stand-in is another than that of the pod beside it

    @property
    def over(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True)
class NodeSeen:
    """A node that has pods of this job."""

    ready: bool = True
    since: float = 0.0  # it has been (not) ready for so long
    fenced: bool = False  # somebody who must know says that nothing runs there any more
    fault: str = ""  # what somebody has reported of it
    trouble: str = ""  # a fault for which it is no place for this job any more
    sub_health: str = ""  # worse than it should be


@dataclass(frozen=True)
class Gang:
    """The PodGroup."""

    phase: str = ""
    text: str = ""  # what it says for itself
    current: bool = True  # it asks for what the job asks for
    made_at: float = 0.0


@dataclass(frozen=True)
class Insight:
    """What the job's manager says about the inside of the pods."""

    phase: str = ""
    over: bool = False  # it has ended, well or not
    recovers: bool = False  # it goes on when a pod is lost, and waits for another
    pods: frozenset[str] = frozenset()  # uids of those it knows of
    placed: frozenset[str] = frozenset()  # of these, such as hold a place
    ailing: Mapping[str, str] = field(default_factory=dict)  # uid of a pod for which another should stand in -> why
    unfit: Mapping[str, str] = field(default_factory=dict)  # uid of a pod that it wants replaced -> why
    left: Mapping[str, str] = field(default_factory=dict)  # the same, where a process failed, and not the node
    report: Mapping[str, Any] = field(default_factory=dict)  # for the status: step, goodput, policy, last incident
    incident: int = 0  # number of the fault that is being mended, 0: none
    recovering: str = ""  # what is being done about it
    last: int = 0  # number of the last that was mended
    story: str = ""  # how
    degraded: str = ""  # with how many it goes on


@dataclass(frozen=True)
class Record:
    """What must outlive the operator. It is kept in the job's status, and written before anything follows from it."""

    wave: int = 0  # of the pods made from now on
    floor: int = 0  # pods of earlier waves are to go
    launched: int = -1  # the last wave of which all pods have been seen
    begun: int = -1  # the floor above which somebody inside has taken charge: who comes later joins
    shape: str = ""
    charged: int = 0  # waves that count against the limit
    free: int = -1  # the last wave that does not, because somebody inside went on
    failures: int = 0  # of these, such in which a program had failed
    done: tuple[tuple[str, tuple[int, ...]], ...] = ()  # role -> indices whose pods have succeeded
    avoid: tuple[tuple[str, float], ...] = ()  # nodes that failed this job, and when
    shun: tuple[tuple[str, float], ...] = ()  # nodes on which processes of it failed: taken when no other is free
    told: int = 0  # the generation of the job whose notes and problems were told
    opened: int = 0  # the last incident whose beginning was told
    closed: int = 0  # and whose end
    started_at: float | None = None
    ended_at: float | None = None

    def is_done(self, place: Place) -> bool:
        return place in self._done_places

    @cached_property
    def _done_places(self) -> frozenset[Place]:
        """There may be many, and each is asked about."""
        return frozenset((role, index) for role, indices in self.done for index in indices)


@dataclass(frozen=True)
class Word:
    """One of the five states, as the last condition says it."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True)
class Seen:
    """All that was observed about a job."""

    generation: int = 1
    pods: tuple[PodSeen, ...] = ()
    nodes: Mapping[str, NodeSeen] = field(default_factory=dict)  # those that exist
    service: bool = False  # it is there, and has its address
    leads_to: str = ""  # the index, as labelled, of the pods that it selects
    secret: bool = False
    gang: Gang | None = None
    record: Record = field(default_factory=Record)
    word: Word | None = None  # the state that is written down
    insight: Insight | None = None
    lately: Insight | None = None  # without insight: what it was before the way to it was cut
    insight_until: float = 0.0  # and so long it is worth waiting for some, or trusting what it was
    hopeless: str = ""  # why those inside cannot go on, by their own word, whatever happens
    errors: Mapping[str, str] = field(default_factory=dict)  # what could not be written lately: service, gang, pod
    ends: str = ""  # the job, or its namespace, is being deleted
    previous: Mapping[Place, str] = field(default_factory=dict)  # where pods were before, as far as known


# ---------------------------------------------------------------------------------------------------- to do


@dataclass(frozen=True)
class MakeSecret:
    """The shared secret of the job's processes."""


@dataclass(frozen=True)
class MakeService:
    """Where the pods meet. `leads_to`: it is there, and is to select pods that are labelled with this index."""

    leads_to: str = ""


@dataclass(frozen=True)
class MakeGang:
    """The PodGroup, or its spec as the job now is."""

    change: bool = False


@dataclass(frozen=True)
class DropGang:
    """Nothing waits any more."""


@dataclass(frozen=True)
class MakePod:
    place: Place
    wave: int
    prefer: str = ""  # the node it was on before
    avoid: tuple[str, ...] = ()
    floor: int = 0  # pods of earlier waves are to go
    joins: bool = False  # those who stay have begun: it takes the place of a lost one
    stand_in_for: str = ""  # the pod beside which it gets ready to take over
    shun: tuple[str, ...] = ()  # only if there is no other


@dataclass(frozen=True)
class DropPod:
    name: str
    uid: str
    why: str
    grace_s: int | None = None  # None: what the pod itself says; 0: without waiting for anybody


@dataclass(frozen=True)
class DropJob:
    """Its time after the end is over."""


Write: TypeAlias = MakeSecret | MakeService | MakeGang | DropGang | MakePod | DropPod | DropJob


@dataclass(frozen=True)
class Said:
    """An event."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True)
class Extra:
    """A condition besides the five states."""

    type: str
    holds: bool
    reason: str
    message: str


@dataclass(frozen=True)
class Plan:
    """What follows. The status is written first; the rest only when that went well, in this order."""

    record: Record
    word: Word | None = None  # None: no state yet
    extras: tuple[Extra, ...] = ()
    writes: tuple[Write, ...] = ()
    events: tuple[Said, ...] = ()
    why: tuple[str, ...] = ()
    again_s: float | None = None  # look again then, whether or not anything changes
    hands_off: bool = False  # it is being deleted: nothing is written, not even the status
