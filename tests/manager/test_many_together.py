"""What the manager has to do grows as the job does. Calls of functions are counted: what else runs does not matter."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from dataclasses import replace
from io import StringIO

import msgspec
import pytest
from driven import Driven
from played import facts_of

from onward.core.facts import FaultReport, Stage
from onward.core.job import Phase
from onward.core.membership import ALL_VOTE, Member
from onward.wire.messages import AgentFacts, Orders

SMALL, TIMES = ALL_VOTE + 16, 4


def calls(work: Callable[[], object]) -> int:
    counted = cProfile.Profile()
    counted.runcall(work)
    total: int = pstats.Stats(counted, stream=StringIO()).total_calls  # type: ignore[attr-defined]
    return total


class Large(Driven):
    """A running job of many nodes of one rank each."""

    at_once = False

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes=nodes, local=1, standby=0)

    def kept_by(self, agent: Member) -> list[int]:
        return [(agent.wanted + 1) % self.settings.world_size]

    def words(self) -> list[AgentFacts]:
        """As each agent would say that nothing has changed."""
        self._version += 1
        agents = zip(self.agents, self.orders.values(), self.ranks.values(), strict=True)
        return [
            facts_of(m, self._version, orders, [f], seat=orders.seat, kept={r: [19, 20] for r in self.kept_by(m)})
            for m, orders, f in agents
        ]

    def count(self, words: list[AgentFacts]) -> int:
        """Calls, until all has been heard and thought about."""

        def take_in() -> None:
            for message in words:
                self.logic.on_facts(message, self.now, think=False)
            self.logic.think(self.now)

        return calls(take_in)


@pytest.fixture
def jobs() -> tuple[Large, Large]:
    return Large(SMALL), Large(SMALL * TIMES)


def test_a_fault_is_told_to_all_in_time_that_grows_as_the_job_does(jobs: tuple[Large, Large]) -> None:
    few, many = (job.count(struck(job)) for job in jobs)
    assert [job.phase for job in jobs] == [Phase.PAUSING] * 2
    assert [len(told(job)) for job in jobs] == [SMALL, SMALL * TIMES]
    assert many / few < 1.3 * TIMES, f"{few} calls, {many} for {TIMES} times as many agents"


def struck(job: Large) -> list[AgentFacts]:
    f = job.ranks[1]
    fault = FaultReport("signal", 1, f.incarnation, step=20, text="SIGKILL", at=job.now)
    job.ranks[1] = replace(f, stage=Stage.EXITED, exit_code=-9, fault=fault)
    return [job.words()[1]]


def told(job: Large) -> set[str]:
    return {agent for agent, message in job.logic.out if agent is not None and isinstance(message, Orders)}


def test_those_who_are_back_together_cost_as_much_as_there_are_of_them(jobs: tuple[Large, Large]) -> None:
    """The end of a cut: all were silent for long, and have not taken the latest orders."""
    counted = []
    for job in jobs:
        words = [older(m) for m in job.words()]
        job.now += 4.0
        counted.append(job.count(words))
        assert len(told(job)) == len(job.agents), "not told again: were they away?"
    few, many = counted
    assert many / few < 1.3 * TIMES, f"{few} calls, {many} for {TIMES} times as many agents"


def older(m: AgentFacts) -> AgentFacts:
    return msgspec.structs.replace(m, orders_version=0)
