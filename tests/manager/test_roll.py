"""What agents have said: who holds what of a rank, and what those that stand by have prepared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onward.core.facts import RankFacts, Stage
from onward.core.job import Job, Limits, new_job
from onward.core.membership import Member
from onward.core.policy import Policy
from onward.manager.roll import Roll
from onward.wire.messages import AgentFacts

A, B, C = (Member(id=name, peer=f"{name}|1", manager=f"{name}|2") for name in "abc")


def job() -> Job:
    return new_job(2, (Policy.RECOVER, Policy.EXIT), Limits(), (A, B))


def told(*messages: AgentFacts) -> Roll:
    roll = Roll(2)
    for message in messages:
        roll.hear(message, 10.0)
    return roll


def says(m: Member, **more: Any) -> AgentFacts:
    return AgentFacts(agent=m, version=1, term=1, orders_version=1, **{"ranks": [], **more})


def having(rank: int, node: int, *steps: int) -> RankFacts:
    return RankFacts(rank=rank, node=node, incarnation=2, local_steps=steps)


def test_a_node_holds_what_nobody_has_newer() -> None:
    its_own = says(B, ranks=[having(1, 1, 40, 41)])
    assert told(its_own, says(A, kept={1: [40, 41]})).holds(job(), 1)
    assert not told(its_own, says(A, kept={1: [90, 91]})).holds(job(), 1), "it had this place before, and lost it"
    assert not told(says(B, ranks=[having(1, 1)]), says(A, kept={1: [40]})).holds(job(), 1)
    assert told(its_own).holds(job(), 1), "nobody keeps anything"


def test_what_is_prepared_and_where_managers_would_be_is_heard_of_those_who_are_there() -> None:
    roll = told(says(A), says(B), says(C, ahead=[1, 0]))
    assert roll.ahead(job()) == {"c": (1, 0)}
    assert roll.doors == ["a|2", "b|2", "c|2"]
    roll.absent.add("c")
    assert roll.ahead(job()) == {}
    assert roll.doors == ["a|2", "b|2"]


class Counted(Roll):
    """Counts how often it goes through all agents."""

    looks = 0

    def _find_kept(self) -> dict[int, int]:
        self.looks += 1
        return super()._find_kept()

    def _find_keeper(self, job: Job, rank: int) -> str:
        self.looks += 1
        return super()._find_keeper(job, rank)


def test_what_is_kept_is_looked_for_once_however_many_ask_and_again_when_it_has_changed() -> None:
    """With thousands of agents, each of whom is told, it would take seconds otherwise."""
    roll, here = Counted(2), job()
    roll.hear(says(A, kept={1: [40]}), 10.0)
    roll.hear(says(B, ranks=[having(1, 1, 41)]), 10.0)
    for _ in range(3):
        assert roll.holds(here, 1)
        assert roll.keeper(here, 1) == "a"
    assert roll.looks == 2
    roll.hear(says(A, kept={1: [40]}), 11.0)
    assert roll.kept == {1: 40}
    assert roll.looks == 2, "the same"
    roll.hear(says(A, kept={1: [90]}), 12.0)
    assert not roll.holds(here, 1)
    assert roll.keeper(here, 1) == "a"
    roll.absent.add("a")
    assert roll.holds(here, 1), "whoever is away cannot be asked"
    assert roll.keeper(here, 1) == ""
    roll.connected("a")
    assert roll.kept == {1: 90}
    roll.gone.add("a")
    assert roll.kept == {}
    roll.hear(says(B, kept={1: [91]}), 13.0)
    assert roll.keeper(here, 1) == "b"
    assert roll.keeper(new_job(2, here.policies, Limits(), (A, C)), 1) == "", "it has no place in that one"


def test_in_a_large_job_only_what_is_new_is_thought_about_at_once() -> None:
    """Else the manager would look at thousands of agents whenever one of them says that all goes on."""
    roll = Roll(100)
    members = [Member(id=f"m{i}") for i in range(65)]
    for m in members[:64]:
        roll.hear(says(m, ranks=[having(0, 0, 1)]), 10.0)
    assert roll.says_something(says(members[0], ranks=[having(0, 0, 2)])), "a small one thinks about everything"
    assert roll.says_something(says(members[64])), "nobody has heard of it before"
    roll.hear(says(members[64]), 10.0)
    goes_on = having(0, 0, 2)
    assert not roll.says_something(says(members[0], ranks=[goes_on]))
    changes: list[dict[str, Any]] = [{"exit_code": -9}, {"stage": Stage.PAUSED}, {"generation": 7}, {"incarnation": 9}]
    for change in [*changes, {"resumed": True}]:
        assert roll.says_something(says(members[0], ranks=[replace(goes_on, **change)])), change
    assert roll.says_something(says(members[0], ranks=[goes_on], stopping=True))
    assert roll.says_something(says(members[0], ranks=[]))
