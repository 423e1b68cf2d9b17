"""The copies of the state that are really left, whatever the manager has been told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.core.ends import NOT_MADE_FOR_FEWER
from onward.core.faults import IDENTICAL_LIMIT
from onward.core.job import UNKNOWN, Job
from onward.core.policy import Policy

if TYPE_CHECKING:
    from .ranks import RankProcess
    from .shells import SimAgent
    from .world import World


class Copies:
    """In the memory of processes, with agents, and on disk."""

    def __init__(self, world: World) -> None:
        self.world = world

    def members(self, job: Job) -> list[RankProcess]:
        """The living processes that the job counts on."""
        found = [self.world.process_of(r) for r in job.ranks]
        return [p for p in found if p is not None and p.alive and p.incarnation == job.incarnations[p.rank]]

    def complete(self, job: Job) -> int:
        """The furthest step for which a whole copy is left and that every rank can be given; -1 when there is none."""
        members = self.members(job)
        found = -1
        for p in members:
            step, clean, undo = p.tx.standing()
            if not p.holds or p.left_loop or p.stuck or p.failing:
                continue
            for candidate in [step] * clean + [step - 1] * undo:
                if candidate > found and all(self._can_reach(r, candidate, job) for r in job.ranks):
                    found = candidate
        return found

    def too_few(self, job: Job, rank_faults: int) -> bool:
        """For a start without the nodes that are missing; or the script has not shown that it can."""
        enough = nodes_of(job) >= self.world.scenario.min_nodes
        if Policy.ELASTIC not in job.policies or not enough or UNKNOWN in job.reason:
            return True
        return NOT_MADE_FOR_FEWER in job.reason and rank_faults >= IDENTICAL_LIMIT

    def _can_reach(self, rank: int, step: int, job: Job) -> bool:
        if self.world.scenario.elastic:
            return True  # a new process may begin with what it had in its set-up
        p = self.world.process_of(rank)
        if p is not None and p.alive and p.incarnation == job.incarnations[rank] and p.holds:
            at, clean, undo = p.tx.standing()
            if (at == step and clean) or (undo and at - 1 == step):
                return True
        home = self.world.agent_of(rank)
        if home is None:
            return False
        own = [kept for kept, _ in home.slots.get((rank, job.attempt), [])] if home.running else []
        return step in own or any(a.running and step in self._kept_of(a, rank, job) for a in self.world.agents)

    def _kept_of(self, agent: SimAgent, rank: int, job: Job) -> list[int]:
        kept = agent.logic.keeper.of(rank, job.attempt)
        return [int(data.split()[0]) for data in kept.slots.values()]

    def saved(self, job: Job) -> int:
        """The newest step that every rank could load now."""
        found = {r: self.world.agent_of(r) for r in job.ranks}
        agents = {r: a for r, a in found.items() if a is not None and a.running}
        if len(agents) < len(found):
            return -1
        whole = {s for r, a in agents.items() for s in a.loadable(r)}
        each = [{*a.loadable(r), *a.memory.steps_of(r)[1]} for r, a in agents.items()]
        return max(set.intersection(whole, *each), default=-1)


def nodes_of(job: Job) -> int:
    """Those who are there."""
    return len(job.places) - job.places.count(None)
