"""How long ranks compute, gathered from facts: who is slow is decided in `core.stragglers`."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from onward.core import stragglers
from onward.core.conditions import Condition
from onward.core.facts import RankFacts, Stage
from onward.core.job import Job, Phase, node_of

JUDGE_S = 0.5
SETTLE_STEPS = 3  # after a new generation, in which buckets, caches and memory find their places


class Pace:
    """Starts anew with every manager: a straggler shows again within some steps."""

    def __init__(self) -> None:
        self._steps: dict[int, deque[stragglers.Effort]] = {}
        self._of: dict[int, tuple[int, int]] = {}  # rank -> (generation, incarnation) of its steps
        self._from: dict[int, int] = {}  # rank -> the first step that counts
        self._last: dict[int, int] = {}
        self._watch = stragglers.Watch()
        self._since: dict[int, float] = {}
        self._judged_at = 0.0

    def see(self, f: RankFacts) -> None:
        step, life = f.progress.step, (f.generation, f.incarnation)
        if f.stage is not Stage.TRAINING or not f.resumed:
            return
        if self._of.get(f.rank) != life:
            if f.rank in self._of and self._of[f.rank][1] != f.incarnation:
                self._forget(f.rank)  # another process, perhaps on another node
            self._of[f.rank] = life
            self._steps[f.rank] = deque(maxlen=stragglers.WINDOW)
            self._from[f.rank], self._last[f.rank] = step + SETTLE_STEPS, step
        if step > self._last[f.rank] and f.progress.compute_s > 0:
            self._last[f.rank] = step
            if step >= self._from[f.rank]:
                self._steps[f.rank].append(stragglers.Effort(f.progress.compute_s, f.progress.queued_s))

    def _forget(self, rank: int) -> None:
        slow = {r: why for r, why in self._watch.slow.items() if r != rank}
        self._watch = replace(self._watch, slow=slow)

    def judge(self, job: Job, now: float, at: float) -> list[str]:
        """Look again, now and then. Returns what has changed, in words. `at`: the time of day."""
        if now - self._judged_at < JUDGE_S or job.phase is not Phase.RUNNING:
            return []
        self._judged_at = now
        before = self._watch.slow
        now_here = [r for r in job.ranks if self._of.get(r) == (job.generation, job.incarnations[r])]
        steps = {r: tuple(self._steps[r]) for r in now_here}
        homes = {r: job.places[node_of(job, r)] for r in steps}
        machines = {r: m.boot or m.id for r, m in homes.items() if m is not None}
        self._watch = stragglers.judge(self._watch, steps, machines, len(job.ranks), now)
        slow = self._watch.slow
        self._since = {r: self._since.get(r, at) for r in slow}
        raised = [f"sub-health of node {node_of(job, r)}: {why}" for r, why in slow.items() if r not in before]
        return [*raised, *(f"rank {r} is no longer slow" for r in before if r not in slow)]

    @property
    def slow(self) -> dict[int, str]:
        return dict(self._watch.slow)

    def conditions(self, job: Job) -> list[Condition]:
        return [
            Condition("slow", node_of(job, r), r, f"node {node_of(job, r)}, {why}", self._since.get(r, 0.0))
            for r, why in sorted(self._watch.slow.items())
        ]
