"""From when on a job of MIN:MAX nodes begins without those who do not come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onward.core.job import Limits
from onward.core.membership import Member
from onward.core.policy import parse_policies
from onward.manager.logic import ManagerLogic
from onward.manager.settings import ManagerSettings
from onward.wire.messages import AgentFacts

SETTINGS = ManagerSettings(
    world_size=4, nodes=4, policies=parse_policies("elastic-training"), limits=Limits(min_nodes=2), seat="a0"
)
LAST_CALL_S = SETTINGS.limits.last_call_s


class Called:
    """A manager that waits for agents, and a clock that is turned by hand."""

    def __init__(self, settings: ManagerSettings = SETTINGS) -> None:
        self.logic = ManagerLogic(settings)
        self.here: list[Member] = []
        self.now, self._version = 100.0, 0

    def come(self, *numbers: int, pod: str = "") -> Called:
        self.here += [Member(id=f"a{n}", host=f"h{n}", wanted=n, pod=pod) for n in numbers]
        return self.wait(0.1)

    def wait(self, seconds: float) -> Called:
        """Everybody speaks ten times a second."""
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            self._version += 1
            for m in self.here:
                said = AgentFacts(agent=m, version=self._version, term=0, orders_version=0, ranks=[])
                self.logic.on_facts(said, self.now)
        return self

    @property
    def places(self) -> list[str] | None:
        job = self.logic.job
        return [m.id if m is not None else "" for m in job.places] if job is not None else None


def test_it_begins_without_them_after_the_last_call() -> None:
    called = Called().come(0, 2, 1).wait(LAST_CALL_S - 1.0)
    assert called.places is None
    assert called.logic.waiting == "1 of 4 nodes"
    assert called.wait(1.5).places == ["a0", "a1", "a2", ""]
    assert called.logic.job is not None
    assert [[m.id for m in e.members] for e in called.logic.job.voters] == [["a0", "a1", "a2"]]


def test_the_call_begins_when_enough_are_there_and_whoever_comes_later_does_not_prolong_it() -> None:
    called = Called().come(0, 1).wait(2 * LAST_CALL_S)
    assert called.places is None, "with half of them another half could begin as well"
    assert called.come(2).wait(LAST_CALL_S / 2).places is None
    assert called.wait(LAST_CALL_S / 2 + 1.0).places == ["a0", "a1", "a2", ""]


def test_with_all_nodes_it_begins_at_once() -> None:
    assert Called().come(0, 1, 2, 3).places == ["a0", "a1", "a2", "a3"]


@pytest.mark.parametrize("least", [4, 3])
def test_it_never_begins_with_fewer_than_its_least_nodes(least: int) -> None:
    called = Called(replace(SETTINGS, limits=Limits(min_nodes=least))).come(0, 1, 2).wait(LAST_CALL_S + 1.0)
    assert (called.places is None) == (least == 4)


@pytest.mark.parametrize(("policies", "pod"), [("recover", ""), ("elastic-training", "p")])
def test_it_waits_for_all_without_the_policy_or_where_a_cluster_starts_pods(policies: str, pod: str) -> None:
    called = Called(replace(SETTINGS, policies=parse_policies(policies)))
    assert called.come(0, pod=pod).come(1, 2).wait(LAST_CALL_S + 1.0).places is None
