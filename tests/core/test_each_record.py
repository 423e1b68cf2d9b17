"""A node is lost, the world shrinks, somebody comes and it grows: a manager may die after any record of that.

The others of its kind are in `tests/simulation/test_each_record.py`. It has told nobody of its last record; the next
one has it from the journal, or goes on from what the agents were told before.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from onward.core.facts import FaultReport, RankFacts, Scope, Stage
from onward.core.job import Job, Limits, Phase, new_job
from onward.core.membership import Member, Outlook
from onward.core.policy import parse_policies
from onward.core.recovery import advance
from onward.core.succession import inherited
from onward.manager.record import job_of, record_of

A, B, C, D = (Member(id=name) for name in "abcd")
STEPS_S = 0.2


class World:
    """Three nodes of a rank each; those who live do at once what they are told."""

    def __init__(self) -> None:
        job = new_job(3, parse_policies("recover,elastic-training"), Limits(reschedule_s=1.0), (A, B, C))
        self.told = replace(job, phase=Phase.RUNNING, generation=1, begun=True, library=True)
        self.job = self.told
        self.step = 10
        self.now = 0.0
        self.records = 0

    @property
    def here(self) -> tuple[Member, ...]:
        """One is lost at once; another comes when the others have gone on without it for a while."""
        return (A, B, D) if self.step > 20 else (A, B)

    def facts(self) -> dict[int, RankFacts]:
        return {r: f for r in range(3) if (f := self._fact(r)) is not None}

    def _fact(self, rank: int) -> RankFacts | None:
        job, home = self.told, self.told.places[rank]
        if home is None:
            return None
        f = RankFacts(rank, rank, job.incarnations[rank], 1, Stage.TRAINING, job.generation, True, elastic=True)
        if home not in self.here:
            fault = FaultReport("node", rank, f.incarnation, text="its process is gone", at=1.0)
            return replace(f, stage=Stage.EXITED, fault=fault)
        held = replace(f, step=self.step, clean=True, local_steps=(self.step - 1, self.step), scope=Scope.BETWEEN)
        if rank in (*job.absent, *job.joining) and job.phase in (Phase.RUNNING, Phase.PAUSING):
            return replace(f, stage=Stage.PARKED, generation=0)
        if job.phase is Phase.PAUSING:
            return replace(held, stage=Stage.PAUSED)
        if job.phase is Phase.FORMING:
            return None if rank in job.absent else replace(held, stage=Stage.FORMED)
        return replace(held, resumed=True)

    def run(self, dies_after: int = 0, journal: bool = True) -> Job:
        while self.step < 60 and self.now < 300.0:
            outlook = Outlook(here=self.here, gone=frozenset("c"), following=frozenset("abcd"))
            decided = advance(self.job, self.facts(), self.now, outlook).job
            if decided != self.job:
                self.records += 1
                if self.records == dies_after:
                    known = job_of(record_of(decided if journal else self.told))
                    assert known is not None
                    decided = inherited(known, known.term + 1, self.now)
                self.job = self.told = decided
            else:
                self.now += STEPS_S
                self.step += self.job.phase is Phase.RUNNING
        return self.job


@pytest.mark.parametrize("journal", [True, False], ids=["kept", "lost"])
def test_a_manager_that_dies_after_any_record_of_shrinking_and_growing(journal: bool) -> None:
    calm = World()
    end = calm.run()
    assert (end.phase, end.places, end.absent, end.attempt) == (Phase.RUNNING, (A, B, D), (), 0)
    assert end.incidents == 2, "it has shrunk, and grown back"
    assert calm.records > 6
    for record in range(1, calm.records + 1):
        job = World().run(record, journal)
        assert (job.phase, job.places, job.absent, job.attempt) == (Phase.RUNNING, (A, B, D), (), 0), record
        assert (job.incarnations, job.restarts_used) == (end.incarnations, end.restarts_used), record
        assert job.last is not None
        assert job.last.policy == "elastic-training", record
