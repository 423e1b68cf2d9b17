"""Whatever agents say, in whatever order: the state machine comes to rest, and silence ends every wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from advancing import ALL
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.core.facts import FaultReport, Progress, RankFacts, Scope, Stage
from onward.core.job import Job, Limits, Phase, new_job
from onward.core.policy import parse_policies
from onward.core.recovery import advance

short = st.sampled_from(["", "RuntimeError: x", "ValueError: y"])
faults = st.builds(
    FaultReport,
    kind=st.sampled_from(["exit", "signal", "exception", "hang", "stall", "start", "shape", "unheard of"]),
    rank=st.integers(0, 2),
    incarnation=st.integers(0, 4),
    step=st.integers(-1, 3),
    text=short,
    retryable=st.sampled_from(["", "memory", "communication"]),
    at=st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0]),
)
codes = st.none() | st.sampled_from([0, 1, -9])


@st.composite
def any_facts(draw: st.DrawFn, world: int) -> dict[int, RankFacts]:
    """Whatever agents could say, sense or nonsense."""
    found = {}
    for rank in draw(st.sets(st.integers(-1, world), max_size=world + 2)):
        fault = draw(st.none() | st.none() | faults)
        stage = draw(st.sampled_from(Stage))
        found[rank] = RankFacts(
            rank=rank,
            node=0,
            incarnation=draw(st.integers(0, 4)),
            stage=stage,
            generation=draw(st.integers(0, 5)),
            library=draw(st.booleans()),
            step=draw(st.integers(-1, 3)),
            clean=draw(st.booleans()),
            undo=draw(st.booleans()),
            scope=draw(st.sampled_from(Scope)),
            local_steps=tuple(draw(st.lists(st.integers(0, 3), max_size=2))),
            resumed=draw(st.booleans()),
            exit_code=draw(codes) if stage is Stage.EXITED else None,
            fault=replace(fault, rank=rank) if fault is not None else None,
            progress=Progress(step=draw(st.integers(-1, 3)), section=draw(st.booleans())),
        )
    return found


def believable(job: Job, facts: Mapping[int, RankFacts], want: bool) -> dict[int, RankFacts]:
    """With `want`, of the incarnations and the generation that the job has: else hardly anything ever follows."""
    if not want:
        return dict(facts)
    return {
        r: replace(f, incarnation=job.incarnations[r], generation=job.generation)
        for r, f in facts.items()
        if 0 <= r < job.world_size
    }


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from([1, 3]), st.sampled_from([0, 1, 3, 32767]))
def test_any_facts_in_any_order_lead_to_a_fixed_point(data: st.DataObject, world: int, budget: int) -> None:
    policies = data.draw(st.sampled_from([ALL, parse_policies("retry"), parse_policies("exit")]))
    job = new_job(world, policies, Limits(max_restarts=budget))
    now = 0.0
    for _ in range(data.draw(st.integers(1, 12))):
        now += data.draw(st.sampled_from([0.0, 0.1, 6.0, 20.0, 700.0, 2000.0]))
        facts = believable(job, data.draw(any_facts(world)), data.draw(st.booleans()))
        decision = advance(job, facts, now)
        assert not any("no fixed point" in why for why in decision.why)
        assert advance(decision.job, facts, now).job == decision.job
        assert decision.job.generation >= job.generation
        assert len(decision.job.incarnations) == world
        assert decision.job.restarts_used <= max(budget, 0)
        if decision.job.phase is Phase.FAILED and job.phase is not Phase.FAILED:
            assert decision.job.reason
            assert decision.job.root_cause is not None
        if decision.job.phase in (Phase.PAUSING, Phase.FORMING):
            assert decision.job.deadline is not None, "every wait has a deadline"
        job = decision.job


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_silence_after_any_history_ends(data: st.DataObject) -> None:
    """Whatever has happened, when nothing changes any more the deadlines lead out of every pause."""
    job, now = new_job(3, ALL, Limits(max_restarts=5)), 0.0
    facts: dict[int, RankFacts] = {}
    for _ in range(data.draw(st.integers(1, 6))):
        facts = believable(job, data.draw(any_facts(3)), data.draw(st.booleans()))
        job = advance(job, facts, now).job
    for _ in range(200):
        now += 5000.0
        job = advance(job, facts, now).job
    assert job.phase not in (Phase.PAUSING, Phase.FORMING), f"{job.phase.value} for ever"
