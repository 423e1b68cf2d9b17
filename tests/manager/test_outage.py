"""A node that went while nobody was in office: since when it is counted, and what became of the time."""

from __future__ import annotations

import pytest
from driven import Driven

from onward.wire.messages import Times


def gone_with_the_manager(still_s: float) -> Driven:
    """Node 0 and the manager on it are lost; the operator tells a new one as it takes office."""
    d = Driven(standby=1)
    d.agents = [m for m in d.agents if m.id != "a0"]
    d.times = Times(trained_s=100.0, good_s=60.0, still_s=still_s)
    d.logic = type(d.logic)(d.settings)
    d.logic.declare_gone("a0")
    d.now += 79.0
    d.train(21)
    d.now += 3.0
    d.train(21)
    return d


def test_its_incident_begins_when_the_others_came_to_a_stand() -> None:
    d = gone_with_the_manager(still_s=79.0)
    assert d.logic.job is not None
    assert d.logic.job.incident is not None
    assert [f.kind for f in d.logic.job.incident.faults] == ["node", "node"]
    detect = dict(d.logic.job.incident.timeline_ms())["detect"]
    assert detect == pytest.approx(79_000.0, abs=1.0)


def test_goodput_is_that_of_the_agents_whoever_is_in_office() -> None:
    assert gone_with_the_manager(still_s=0.0).logic.goodput == pytest.approx(0.6)


def test_goodput_is_told_by_whoever_has_counted_for_the_longest() -> None:
    d = Driven()
    d.times = Times(trained_s=50.0, good_s=45.0)
    d.pass_time(0.4)
    d.times = Times(trained_s=2.0, good_s=0.0)
    d.agents = d.agents[1:]
    d.pass_time(0.4)
    assert d.logic.goodput == pytest.approx(0.9)
