"""What the manager wants of one job, as one value, and the questions that it answers by itself.

`Job` is the whole of it: a copy is enough to go on elsewhere. Every step of the state machine (`recovery.advance`) is a
function of it and of what is known about the ranks (`facts`), and returns a `Decision` with the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from onward.core.agreement import Agreement, Part
from onward.core.facts import FaultReport, RankFacts
from onward.core.incident import Incident
from onward.core.membership import Electorate, Places
from onward.core.policy import Policy
from onward.core.published import Board
from onward.core.switch import Switch
from onward.core.words import listed

RELOAD = "reload"  # not a policy that users name: `exit`, but from a copy that survived, in memory
STOP = "stop"
NEEDS_BATCHES = "elastic-training needs run.batches(global_batch=...), which the script lacks"
UNKNOWN = "whether the script can go on with fewer ranks is not known before its first step"


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
    last_call_s: float = 30.0  # for the others to come, when there are enough to begin; as with torchrun
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
    given_up: tuple[str, ...] = ()  # agents that answer, and have lost their place all the same: others are waited for
    voters: tuple[Electorate, ...] = ()  # the agents of the last generation that ran, and of those that may have run
    run: str = ""  # names this run of the job, among all that write to one directory
    absent: tuple[int, ...] = ()  # ranks without which the job goes on, for now
    joining: tuple[int, ...] = ()  # ranks that come back, and have no local state
    arriving: tuple[int, ...] = ()  # ranks whose node has just taken a place, and fetches what was kept of them
    switch: Switch | None = None
    tried: tuple[tuple[int, str], ...] = ()  # switches that were undone: (node, stand-in)
    switched: tuple[int, ...] = ()  # ranks whose local state is on its way from their old node
    past: tuple[tuple[int, int], ...] = ()  # of these: (rank, the step whose block its old process had begun, or would)
    soft: bool = False  # pause at the end of the step, not in the middle of it
    waiting: str = ""  # what the job waits for, if it is not for its own processes
    incarnations: tuple[int, ...] = ()  # wanted, by rank
    attempt: int = 0  # restarts of the whole job
    library: bool = False  # its script has been seen to use the library
    rigid: str = UNKNOWN  # why the script cannot go on with fewer ranks; empty: it can
    short_starts: int = 0  # with fewer ranks, one after the other, that did not come to the first step
    restarts_used: int = 0
    moved: int = 0  # processes started elsewhere because their node was lost: not restarts of a container
    agreement: Agreement | None = None
    begun: bool = False  # it has been decided from where the first step begins
    ending: str = ""  # all ranks are to end, after a surviving copy is kept: dump, reload or stop
    through: bool = False  # every rank has been through the loop, to its last step
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
    """The job as it is wanted from now on, why, and the incidents that are over."""

    job: Job
    why: tuple[str, ...] = ()
    closed: tuple[Incident, ...] = ()


Facts = Mapping[int, RankFacts]


def new_job(world_size: int, policies: tuple[Policy, ...], limits: Limits, places: Places = ()) -> Job:
    """A job that is about to start for the first time."""
    incarnations = (1,) * world_size
    return Job(world_size=world_size, policies=policies, limits=limits, incarnations=incarnations, places=places)


def node_of(job: Job, rank: int) -> int:
    """Ranks are dealt to nodes in blocks, as torchrun does."""
    return rank // max(1, job.world_size // max(1, len(job.places)))


def renewed(job: Job, ranks: Collection[int]) -> tuple[int, ...]:
    """The incarnations, when these ranks are given new processes."""
    return tuple(i + 1 if r in ranks else i for r, i in enumerate(job.incarnations))


def age(job: Job) -> tuple[int, ...]:
    """Larger for the newer of two records of one job. Within a generation the phases follow each other in order."""
    phase = (tuple(Phase).index(job.phase), job.begun, bool(job.ending), job.ending == STOP)
    return (job.term, job.generation, job.attempt, job.incidents, job.restarts_used, *phase, job.board.version)


def next_generation(job: Job) -> int:
    """The number of the next generation. Never one that can have been given before."""
    return max(job.generation, job.floor) + 1


def current(job: Job, facts: Facts) -> dict[int, RankFacts]:
    """Facts of the incarnations that are wanted; anything else is the past or not there yet."""
    wanted, absent = job.incarnations, frozenset(job.absent)
    here = {r: f for r, f in facts.items() if 0 <= r < len(wanted) and f.incarnation == wanted[r]}
    return {r: f for r, f in here.items() if r not in absent} if absent else here


def does_without(job: Job, others: Iterable[RankFacts]) -> bool:
    """What only a lost rank knew is not needed: random numbers are the micro-batch's, whoever computes it."""
    return Policy.ELASTIC in job.policies and all(f.elastic for f in others)


def all_are(job: Job, facts: Facts, test: Callable[[RankFacts], bool]) -> bool:
    """Every rank that takes part is there, and passes the test."""
    now_here = current(job, facts)
    return len(now_here) == len(job.ranks) and all(test(f) for f in now_here.values())


def furthest(facts: Facts) -> int:
    """The last step that any rank is known to have come to."""
    return max((f.progress.step for f in facts.values()), default=-1)


def vacant(job: Job) -> list[int]:
    """Nodes that are missing: without those whose ranks are absent the job goes on."""
    missing = [i for i, m in enumerate(job.places) if m is None]
    return [i for i in missing if any(node_of(job, r) == i for r in job.ranks)]


def without(job: Job, lost: Collection[int]) -> Places:
    """The places, when those of the lost nodes are free for others."""
    return tuple(None if i in lost else m for i, m in enumerate(job.places))


def node_names(nodes: Collection[int]) -> str:
    """`node 1`, or `nodes 0, 2`."""
    return f"node{'' if len(nodes) == 1 else 's'} {listed(sorted(nodes))}"


def vacancy(job: Job) -> str:
    """What the job waits for while a node is missing."""
    return f"a node to take the place of node {listed(vacant(job))}" if vacant(job) else ""


def is_load(job: Job) -> bool:
    """The generation begins with what ranks load, not with what they hold."""
    return job.agreement is not None and Part.LOAD in job.agreement.parts.values()


def forming_s(job: Job) -> float:
    """Who loads also rehearses, as a replacement does before it parks: that takes steps, not moments."""
    return job.limits.mend_s if is_load(job) else job.limits.form_s


def mend_s(job: Job) -> float:
    """How long the replacements may take."""
    return job.limits.reschedule_s if vacant(job) else job.limits.mend_s


def short_of(job: Job) -> str:
    """What a start with the nodes that are here lacks; empty where it can be had."""
    if Policy.ELASTIC not in job.policies:
        return "elastic-training is not configured"
    if job.rigid or not job.library:
        return job.rigid or UNKNOWN
    here, least = len(job.places) - job.places.count(None), job.limits.min_nodes
    return f"the job needs {least} nodes, and only {here} {'is' if here == 1 else 'are'} here" if here < least else ""


def vacant_s(job: Job) -> float:
    """When all have to start again and cannot with fewer, nobody is kept waiting: there is time for a node to come."""
    return job.limits.reschedule_s if not short_of(job) else max(job.limits.reschedule_s, job.limits.mend_s)


def nobody_came(job: Job, waited_s: float) -> str:
    """Why a missing node is not waited for any longer."""
    return f"no node took the place of node {listed(vacant(job))} within {waited_s:g} s"
