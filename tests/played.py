"""Agents that tests play before a manager."""

from __future__ import annotations

from typing import Any

from onward.core.facts import RankFacts
from onward.core.membership import Member
from onward.wire.messages import AgentFacts, Orders


def facts_of(
    agent: Member, version: int, orders: Orders | None = None, ranks: list[RankFacts] | None = None, **more: Any
) -> AgentFacts:
    """What it tells, by the last orders that it has taken."""
    term, seen, generation = (orders.term, orders.version, orders.generation) if orders is not None else (0, 0, 0)
    return AgentFacts(
        agent=agent, version=version, term=term, orders_version=seen, generation=generation, ranks=ranks or [], **more
    )
