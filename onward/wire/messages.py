"""The messages between rank, agent, manager and operator of one job.

Two conversations, both made of levels rather than changes, so that a lost, repeated or late message does no harm:
an agent tells the manager all it knows (`AgentFacts`), the manager tells the agent all it wants (`Orders`); a rank
tells its agent where it stands (`Report`), the agent passes on what is wanted of it (`RankOrder`). Each carries the
fencing numbers it needs; older ones are dropped by the receiver.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from onward.core.checkpoints import Grant, SavePart
from onward.core.conditions import Condition
from onward.core.facts import FaultReport, RankFacts, Scope, Stage
from onward.core.incident import Incident
from onward.core.intake import Notice
from onward.core.membership import Member
from onward.core.published import Published

Want = Literal["start", "form", "run", "pause", "save", "finish", "leave", "stop"]
# A string in Python, but refused when it is decoded unless it is one of the words.
StageWord = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(s.value for s in Stage)})\\Z")]
FollowsWord = Literal["", "yes", "no"]  # a stand-in keeps up with its rank; or it cannot
ScopeWord = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(s.value for s in Scope)})\\Z")]


class Injection(msgspec.Struct, frozen=True, kw_only=True):
    """A fault to cause on purpose, inside the rank that it is for."""

    id: int
    kind: str
    rank: int = -1
    node: int = 0  # for faults of onward's own processes
    step: int = -1
    at: str = "begin"  # begin, forward, collective, optimizer, end
    seconds: float = 0.0
    steps: int = 0  # of a slow rank: for so many
    delay: float = 0.0  # of a slow rank: in each step
    appends: int = 0  # of a manager: when it has written so many more records, and told nobody of the last
    lose: str = ""  # journal: delete it first
    code: int = 0
    text: str = ""


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """How one rank arrives in a generation."""

    world_size: int
    step: int = -1  # agreed step; -1: a first start, nothing to agree on
    part: Literal["fresh", "keep", "undo", "receive", "load"] = "fresh"
    source: str = ""  # where the state is served, for `receive`
    serves: int = 0  # how many receivers will ask this rank for state
    between: bool = False  # some rank is in a collective between steps: compare how far everybody is
    through: bool = False  # all have been through the loop: what they compare is what came after it
    partner: str = ""  # the agent on another node that keeps a copy of this rank's local state
    begin: bool = False  # nothing is to be loaded: the first step may begin
    members: list[int] = []  # ranks of this generation; empty: all
    past: bool = False  # the code after the last block has been run, by the process that this one takes over from
    fresh: bool = False  # this rank joins anew: local state is its own to make up
    joined: str = ""  # the group that all have connected already: it takes the place of the last one
    light: int = 0  # go on with light steps, publishing before this collective; 0: with careful ones
    error: str = ""  # the exception that ended the process before this one, where the script may be to blame


class RankOrder(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What is wanted of one rank."""

    rank: int
    incarnation: int
    generation: int
    want: Want
    form: Form | None = None
    soft: bool = False  # for `pause`: not in the middle of a step
    follow: str = ""  # for a stand-in: where the rank tells what it does
    join: str = ""  # connect the group of this name, of all ranks, beside what goes on
    why: str = ""


class Save(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks stand at the fence, or are dead: keep this step, so that everybody can be started from it."""

    step: int
    disk: bool  # as a checkpoint; else in memory only
    again: bool  # the code after the last block is to be run again by every rank
    reason: str
    adopted: list[int] = []  # ranks of a lost node, whose local state is kept here


class KeptAt(msgspec.Struct, frozen=True):
    """Where local state of a rank is kept, and how new that is."""

    peer: str
    step: int


class Orders(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All that the manager wants of one agent."""

    term: int
    version: int
    generation: int
    ranks: list[RankOrder]
    seat: str = ""  # of the manager: an agent follows one manager in a term
    age: list[int] = []  # of the generation record
    base: list[int] = []  # of the one that this manager has gone on from
    granted: bool = False  # a majority follows this manager, so what it says counts whatever anybody else holds
    node: int = -1  # the place of this agent, -1: it stands by
    world_size: int = 0
    members: int = 0  # ranks that take part
    step: int = 0  # how far the job is, roughly
    run: str = ""  # names this run of the job, among all that write to one directory
    attempt: int = 0
    phase: str = ""
    exit_code: int | None = None
    reason: str = ""
    root_cause: FaultReport | None = None
    save: Save | None = None
    publish: Grant | None = None
    job: bytes = b""  # the generation record: what must outlive the manager
    store: str = ""  # the agent that keeps the store of this generation
    kept_at: dict[int, KeptAt] = {}  # rank -> who has newer local state of it than its own node
    ahead: list[int] = []  # to an agent that stands by: ranks to have spares for
    log_at: dict[int, str] = {}  # rank of a spare or stand-in -> the agent that has the log of its set-up
    master: str = ""  # node 0, for scripts that bring their own store, ADDRESS|PORT
    managers: list[str] = []  # where to look for a manager when this one is gone, in order
    doors: list[str] = []  # to the agent that hosts this one: where managers of all that are here would be
    waiting: str = ""  # what the job waits for, if it does
    conditions: list[Condition] = []  # what is the matter with nodes and ranks


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the time, as an agent has counted it."""

    trained_s: float = 0.0  # since its ranks' first step
    good_s: float = 0.0  # the part of it that brought the job forward
    still_s: float = 0.0  # for how long they have stood still now

    @property
    def goodput(self) -> float:
        return self.good_s / self.trained_s if self.trained_s > 0.0 else 1.0


class AgentFacts(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All that an agent knows about its ranks."""

    agent: Member
    version: int
    term: int  # highest term seen
    orders_version: int
    ranks: list[RankFacts]
    seat: str = ""  # of the manager it follows
    age: list[int] = []  # of the generation record it holds
    lonely_s: float = 0.0  # for how long it has found no manager in office
    node: int = -1  # its place, as it knows it
    generation: int = 0  # of the orders it follows
    kept: dict[int, list[int]] = {}  # ranks of other nodes whose local state it keeps: rank -> steps
    ahead: list[int] = []  # of one that stands by: ranks that it has spares for
    record: bytes = b""  # the generation record it holds
    stopping: bool = False
    now: float = 0.0
    parts: list[SavePart] = []  # of checkpoints, written here and not yet published
    late_s: float = 0.0  # how late its own ticks have come lately: so busy is the machine
    times: Times = Times()
    software: str = ""  # what its ranks run with, by version; empty: not known, or said before


class DieAfter(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An injected fault that nobody but the manager can time."""

    appends: int
    lose_journal: bool = False


class FaultRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Somebody publishes, clears or lists faults, on any node. May be sent again: it is carried out once."""

    uid: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    notice: Notice


class FaultAnswer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """To the agent that has passed on a FaultRequest."""

    uid: str
    said: list[str] = []
    problems: list[str] = []  # why it was not done
    faults: list[Published] = []  # that stand now


# ---------------------------------------------------------------------------------- operator and manager


class NodeFault(msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster says about the node of a pod, with the level of a published fault."""

    pod: str  # uid
    level: str
    code: str
    text: str = ""


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All that an operator knows about the pods of a job, and the job's manager cannot see."""

    operator: str
    gone: list[str] = []  # uids of pods that are no more: deleted, or their node fenced. An arbiter's word
    trouble: dict[str, str] = {}  # uid of a pod -> what is wrong with its node
    coming: dict[str, str] = {}  # name of a pod that is to fill a vacant place -> how it stands
    faults: list[NodeFault] = []  # that the cluster reports of nodes that pods of the job are on


class JobFacts(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How a job stands inside its pods. `term` 0: nobody is in office yet."""

    term: int = 0
    starts: bool = False  # this is where the job begins, when all its nodes have come
    generation: int = 0
    phase: str = ""
    over: bool = False
    policies: list[str] = []
    pods: list[str] = []  # uids: those whose vote may count, and whoever is here
    vacant: list[int] = []  # places that nobody holds
    placed: list[str] = []  # uids of pods that hold a place
    ailing: dict[str, str] = {}  # uid of a pod for which another should stand in (hot switch) -> why
    unfit: dict[str, str] = {}  # uid of a pod that has to be replaced -> why
    left: dict[str, str] = {}  # the same, and its node is as good as any
    managers: list[str] = []  # where managers are, or would be, ADDRESS|PORT
    seat: str = ""  # where this one is
    ranks: int = 0  # that take part
    world_size: int = 0
    step: int = -1  # that all have committed
    waiting: str = ""
    hopeless: str = ""  # why nobody here will ever be in office
    reason: str = ""
    incidents: int = 0
    incident: int = 0  # number of the one that is open, 0: none
    fault: str = ""  # of the open one, in words
    policy: str = ""
    why: str = ""
    last: int = 0  # number of the latest that is over
    story: str = ""  # of that one
    goodput: float = 1.0
    conditions: list[str] = []

    def steps(self, step: int) -> JobFacts:
        """The same, at another step: what changes with each step is no news."""
        return msgspec.structs.replace(self, step=step, goodput=1.0)


class IncidentNote(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An incident opened, changed or closed: for people."""

    incident: Incident
    open: bool


class Note(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A sentence for people: a decision, with its reason."""

    text: str
    at: float = 0.0
    loud: bool = False  # not only for those who look closer


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """To an agent that does not belong to this job: what differs."""

    why: str


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The manager is there, and has nothing new to say."""

    term: int = 0  # 0: not in office, or without a majority
    waiting: str = ""  # what for


class Elsewhere(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """To a manager that waits for a job to begin, and from it to its agents: the job has begun, and goes on there."""

    managers: list[str]


class CaptureStacks(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Write down what this rank is doing, before it is too late to ask."""

    rank: int
    incarnation: int


# ---------------------------------------------------------------------------------- rank and agent


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """First word of a rank to its agent."""

    process: int  # the agent's number for this process
    pid: int


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The agent's answer: who this process is."""

    rank: int
    local_rank: int
    world_size: int
    incarnation: int
    spare: bool  # a stand-in for `rank`, or a replacement: run alone up to the first step, then park
    page: str  # path of the status page
    local_dir: str  # where the rank's local state is kept safe
    attempt: int = 0
    memory_dir: str = ""  # where copies of the state outlive the process
    dump_dir: str = ""  # where to look for checkpoints when the script names no directory
    run: str = ""  # names this run of the job, among all that write to one directory
    step: int = 0  # the job's step, for a rehearsal
    elastic: bool = False  # the job may go on with fewer ranks
    injections: list[Injection] = []
    retry_on: list[str] = []
    address: str = "127.0.0.1"
    log: list[bytes] = []  # results of the collectives before the first step, for a spare


class Report(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Where a rank stands."""

    stage: StageWord
    generation: int
    step: int = -1
    clean: bool = False
    undo: bool = False
    scope: ScopeWord = "setup"
    resumed: bool = False
    serve: str = ""
    fault: FaultReport | None = None
    local_steps: list[int] = []
    between: int = 0  # collectives since the last commit
    loadable: list[int] = []
    partly: list[int] = []
    light: int = 0  # the shape of its steps that all had agreed on
    elastic: bool = False  # the script can go on with fewer ranks
    feed: str = ""  # where it tells a stand-in what it does
    joined: str = ""
    follows: FollowsWord = ""
    broke: bool = False  # it left its loop with `break`, and waited for nobody
    withheld: str = ""  # why nobody can be given its shared state


class Plan(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Where and how often the script wants checkpoints. Answered by a StoreReply, with an error where it cannot be."""

    id: int
    dir: str
    every: int
    keep: Annotated[int, msgspec.Meta(ge=1)]
    fresh: bool = False  # what earlier runs have left there is not to be loaded


class Copied(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """This rank's part of a step is in its node's memory."""

    step: int
    generation: int
    shared: bool  # the shared state too
    torch: str = ""
    error: str = ""  # why there is no copy


class Recorded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The result of a collective, kept for whoever must run this part of the script again."""

    scope: str
    index: Annotated[int, msgspec.Meta(ge=0, lt=1_000_000)]
    data: bytes


class StoreRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A key-value operation on the store of one generation. `wait` ops are answered when they can be."""

    id: int
    generation: int
    op: Literal["set", "get", "add", "check", "delete", "compare_set", "arrive", "count", "append"]
    key: str
    value: bytes = b""
    expected: bytes = b""
    amount: int = 0


class StoreReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    id: int
    value: bytes = b""
    number: int = 0
    error: str = ""


class Injected(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The rank is about to carry out this injection: it must not fire a second time."""

    id: int


class Inject(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    injection: Injection


FromRank = Hello | Report | Plan | Copied | Recorded | StoreRequest | Injected
ToRank = Welcome | RankOrder | StoreReply | Inject
FromAgent = AgentFacts | FaultRequest | DieAfter | ClusterFacts | Elsewhere
FromManager = JobFacts | Orders | Refused | IncidentNote | Note | CaptureStacks | Beat | FaultAnswer | Elsewhere

encoder = msgspec.msgpack.Encoder()
from_rank = msgspec.msgpack.Decoder(FromRank)
to_rank = msgspec.msgpack.Decoder(ToRank)
from_agent = msgspec.msgpack.Decoder(FromAgent)
from_manager = msgspec.msgpack.Decoder(FromManager)
