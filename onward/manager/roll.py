"""The roll of agents: what each has said last, when that was, and who is known to be away or dead."""

from __future__ import annotations

from collections.abc import Iterable

from onward.core.checkpoints import SavePart
from onward.core.facts import RankFacts
from onward.core.job import Job, node_of
from onward.core.membership import ALL_VOTE, Member, facts_s
from onward.wire.messages import AgentFacts, Times

ABSENT_S = 1.0  # an agent that was silent for longer has been away: its ranks are given their time anew (or 3 beats)
FRESH_S = 0.5  # facts older than this are no evidence against anybody (or 2 beats)
LEAVE_S = 1.0  # when all nodes of a job are told to end, the last hears of it within so long


class Roll:
    """Only what was heard. What is wanted of whom is in the job."""

    def __init__(self, nodes: int) -> None:
        beat_s = facts_s(nodes)
        self.latest: dict[str, AgentFacts] = {}
        self.seen: dict[str, int] = {}  # agent -> version of its facts, on the connection it has now
        self.gone: set[str] = set()  # dead, and their ranks with them
        self.absent: set[str] = set()  # not connected
        self.first_at: float | None = None  # when the first of them was heard
        self.absent_s, self._fresh_s = max(ABSENT_S, 3 * beat_s), max(FRESH_S, 2 * beat_s)
        self.came_at: dict[str, float] = {}  # agent -> when it was heard for the first time
        self._heard_at: dict[str, float] = {}
        self._leaving_since: dict[str, float] = {}
        self._looked_at: float | None = None
        self._places: tuple[Member | None, ...] = ()
        self._nodes: dict[str, int] = {}  # agent -> its place among those
        self._in_place: list[tuple[int, str]] = []  # see `_placed`
        self._placed_in: tuple[Member | None, ...] | None = None
        self._placed_among = 0
        self._changes = 0  # of what is kept where
        self._kept: dict[int, int] = {}
        self._kept_as_of: tuple[int, ...] = ()
        self._keepers: dict[int, str] = {}
        self._keepers_as_of: tuple[object, ...] = ()

    # ------------------------------------------------------------------------------------------ hearing

    def connected(self, agent: str) -> None:
        """The connection to `agent` is new: its numbering starts again."""
        self.seen.pop(agent, None)
        self.absent.discard(agent)
        self._changes += 1

    def is_news(self, message: AgentFacts) -> bool:
        return message.version > self.seen.get(message.agent.id, 0)

    def says_something(self, message: AgentFacts) -> bool:
        """More than that all goes on there. What does not can wait for the next look at everything: in a large job
        somebody speaks all the time, and each look is at all."""
        before = self.latest.get(message.agent.id)
        return before is None or len(self.latest) <= ALL_VOTE or _gist(before) != _gist(message)

    def hear(self, message: AgentFacts, now: float) -> bool:
        """Whether the agent is back after it was silent for long."""
        me = message.agent.id
        back = self.silence(message.agent, now) > self.absent_s
        self._heard_at[me] = now
        self.came_at.setdefault(me, now)
        self.seen[me] = message.version
        before = self.latest.get(me)
        self._changes += message.kept != (before.kept if before is not None else {})
        self.latest[me] = message
        if self.first_at is None:
            self.first_at = now
        if message.stopping:
            self._leaving_since.setdefault(me, now)
        return back

    def expect(self, agents: Iterable[str], now: float) -> None:
        """The silence of those who have not been heard yet begins."""
        self._heard_at = dict.fromkeys(agents, now) | self._heard_at

    def mind_own_absence(self, now: float) -> None:
        """Who was not running himself has no right to call others silent."""
        last, self._looked_at = self._looked_at, now
        away = now - last if last is not None else 0.0
        if away > self.absent_s / 2:
            self._heard_at = {agent: at + away for agent, at in self._heard_at.items()}

    def times(self) -> Times:
        """By whoever has counted for the longest."""
        return max((m.times for m in self.latest.values()), key=lambda t: t.trained_s, default=Times())

    # ------------------------------------------------------------------------------------------ who is there

    def silence(self, m: Member, now: float) -> float:
        return now - self._heard_at.get(m.id, now)

    def present(self, now: float) -> list[AgentFacts]:
        """What those have said who are connected, and lately heard of."""
        away, heard_at, limit_s = self.absent | self.gone, self._heard_at, self.absent_s
        told = self.latest.items()
        return [m for agent, m in told if agent not in away and now - heard_at.get(agent, now) < limit_s]

    def here(self, now: float) -> tuple[Member, ...]:
        """Agents that could hold a place."""
        return tuple(m.agent for m in self.present(now) if not m.stopping)

    def quiet(self, job: Job, now: float) -> list[Member]:
        """Agents with a place of whom nothing fresh is known."""
        heard_at, limit_s = self._heard_at, self._fresh_s
        return [m for m in job.places if m is not None and now - heard_at.get(m.id, now) > limit_s]

    def leaves(self, job: Job, agent: str, now: float) -> bool:
        """It was told to end, for so long that it is not the whole job that ends."""
        latest = self.latest.get(agent)
        leaving = latest is not None and latest.stopping and not self.all_leave(job)
        return leaving and now - self._leaving_since.get(agent, now) > LEAVE_S

    def all_leave(self, job: Job) -> bool:
        """One node that is told to end leaves the job to the others; when all are, the job is to end."""
        if not self._leaving_since:
            return False
        placed = self._placed(job)
        return bool(placed) and all(self.latest[agent].stopping for _, agent in placed)

    def know(self, job: Job, version: int) -> bool:
        """Every agent that may be alive has taken the orders of this version."""
        placed = [m.id for m in job.places if m is not None and m.id not in self.gone]
        seen = {a: (m.term, m.orders_version) for a, m in self.latest.items()}
        return all(seen.get(agent, (0, 0)) >= (job.term, version) for agent in placed)

    def late_s(self) -> float:
        """How late the ticks of an agent come, at worst."""
        away = self.absent | self.gone  # what they said last would count for ever
        return max((m.late_s for agent, m in self.latest.items() if agent not in away), default=0.0)

    # ------------------------------------------------------------------------------------------ what they said

    def place(self, job: Job, agent: str) -> int:
        """Of which node; -1: it stands by. Asked with every word from anybody."""
        if self._places is not job.places:
            self._nodes = {m.id: i for i, m in enumerate(job.places) if m is not None}
            self._places = job.places
        return self._nodes.get(agent, -1)

    def _placed(self, job: Job) -> list[tuple[int, str]]:
        """(node, agent) of those who have a place and have been heard: who has been heard once stays so."""
        if self._placed_in is not job.places or self._placed_among != len(self.latest):
            self._in_place = [(i, m.id) for i, m in enumerate(job.places) if m is not None and m.id in self.latest]
            self._placed_in, self._placed_among = job.places, len(self.latest)
        return self._in_place

    def ranks(self, job: Job) -> dict[int, RankFacts]:
        """What the agents have said of the ranks that are theirs."""
        told = [(i, f) for i, agent in self._placed(job) for f in self.latest[agent].ranks]
        return {f.rank: f for i, f in told if node_of(job, f.rank) == i}

    def parts(self, job: Job) -> dict[int, list[SavePart]]:
        """What each node has written of checkpoints."""
        return {node: self.latest[agent].parts for node, agent in self._placed(job)}

    def stand_ins(self, job: Job) -> dict[int, RankFacts]:
        """What the agent that prepares to take over a node has said of its processes."""
        latest = self.latest.get(job.switch.member.id) if job.switch is not None else None
        return {f.rank: f for f in latest.ranks} if latest is not None else {}

    @property
    def doors(self) -> list[str]:
        """Where managers of those that are connected would be."""
        away = self.absent | self.gone
        return [m.agent.manager for agent, m in self.latest.items() if m.agent.manager and agent not in away]

    def ahead(self, job: Job) -> dict[str, tuple[int, ...]]:
        """Places that agents which stand by have spares for."""
        local = max(1, job.world_size // max(1, len(job.places)))
        away = self.absent | self.gone
        told = {agent: m.ahead for agent, m in self.latest.items() if m.ahead and agent not in away}
        return {agent: tuple(dict.fromkeys(r // local for r in ranks)) for agent, ranks in told.items()}

    def keeper(self, job: Job, rank: int) -> str:
        """The agent with a place in the job that keeps the newest local state of a rank of a lost node."""
        now = (*self._as_of, job.places)
        if self._keepers_as_of != now:
            self._keepers, self._keepers_as_of = {}, now
        if rank not in self._keepers:
            self._keepers[rank] = self._find_keeper(job, rank)
        return self._keepers[rank]

    def _find_keeper(self, job: Job, rank: int) -> str:
        away = self.absent | self.gone
        keepers = [a for _, a in self._placed(job) if a not in away and self.latest[a].kept.get(rank)]
        return max(keepers, key=lambda a: (max(self.latest[a].kept[rank]), a), default="")

    def keeps_newest(self, rank: int) -> str:
        """Where to fetch it: also from one that stands by, or that is to have the rank itself from now on."""
        away = self.absent | self.gone
        keepers = [m for agent, m in self.latest.items() if agent not in away and m.kept.get(rank)]
        newest = max(keepers, key=lambda m: (max(m.kept[rank]), m.agent.id), default=None)
        return newest.agent.peer if newest is not None else ""

    def holds(self, job: Job, rank: int) -> bool:
        """Its node has local state of the rank: that outlives the process it is of. Not where another has newer: it may
        have had this place before, and what it still has is of then."""
        home = job.places[node_of(job, rank)]
        there = self.latest[home.id].ranks if home is not None and home.id in self.latest else []
        newest = self.kept.get(rank, -1)
        return any(f.rank == rank and f.local_steps and max(f.local_steps) >= newest for f in there)

    @property
    def kept(self) -> dict[int, int]:
        """Of the ranks whose local state is kept by an agent that can be asked for it: the newest step.

        Asked for every rank when all are told to pause, so it is found once, and again when somebody keeps another.
        """
        if self._kept_as_of != self._as_of:
            self._kept, self._kept_as_of = self._find_kept(), self._as_of
        return self._kept

    @property
    def _as_of(self) -> tuple[int, ...]:
        """Changes with all that `kept` depends on: agents are added to these sets, and one comes back by connecting."""
        return (self._changes, len(self.absent), len(self.gone))

    def _find_kept(self) -> dict[int, int]:
        away = self.absent | self.gone
        found: dict[int, int] = {}
        for m in (m for agent, m in self.latest.items() if agent not in away):
            for rank, steps in m.kept.items():
                found[rank] = max([found.get(rank, -1), *steps])
        return {rank: step for rank, step in found.items() if step >= 0}

    def kept_steps(self, job: Job, rank: int) -> tuple[int, ...]:
        """Of a rank of a lost node: the steps whose local state is kept."""
        keeper = self.keeper(job, rank)
        return tuple(self.latest[keeper].kept[rank]) if keeper else ()


def _gist(m: AgentFacts) -> tuple[object, ...]:
    ranks = [(f.incarnation, f.stage, f.generation, f.resumed, f.fault, f.exit_code) for f in m.ranks]
    beside = [(f.follows, f.joined) for f in m.ranks]
    return (m.term, m.orders_version, m.generation, m.stopping, m.parts, m.ahead, ranks, beside)
