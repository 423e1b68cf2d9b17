"""Looking for ranks that hang: facts in, accusations out. Who holds the others up is decided in `core.health`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from onward.core import health
from onward.core.facts import FaultReport, Progress, RankFacts, Stage
from onward.core.faults import exit_fault
from onward.core.job import Job, Phase, current

CONFIRM_S = 0.15  # agents read pages now and then: nobody is blamed for what one look at them shows
STOPPED_S = 1.0  # a process that is stopped for so long, where no steps can show that it holds the others up, is hung
_AT_WORK = (Stage.TRAINING, Stage.DONE, Stage.LEFT)


class Watch:
    """Starts anew with every manager: what hangs shows again."""

    def __init__(self, floor_s: float, first_s: float) -> None:
        self._floor_s, self._first_s = floor_s, first_s
        self._late_s = 0.0
        self._step_times: deque[float] = deque(maxlen=64)
        self._last_step: dict[int, int] = {}
        self._accused: dict[int, FaultReport] = {}
        self._captured: set[tuple[int, int]] = set()  # (rank, incarnation) whose stacks have been asked for
        self._ask: list[RankFacts] = []
        self._going: tuple[Phase, int] | None = None  # (phase, generation)
        self._going_since = 0.0
        self._suspects: tuple[int, ...] | None = None
        self._suspected_at = 0.0
        self._gone: set[int] = set()

    def see(self, f: RankFacts) -> None:
        """How long steps take."""
        step = f.progress.step
        if f.stage is Stage.TRAINING and f.resumed and step > self._last_step.get(f.rank, -1) and f.progress.step_s > 0:
            self._last_step[f.rank] = step
            self._step_times.append(f.progress.step_s)

    @property
    def steps_s(self) -> float:
        """How long a rank may legally take to reach the fence."""
        return self._limit_s() if len(self._step_times) >= 3 else min(30.0, self._first_s)

    def _limit_s(self) -> float:
        return health.limit_s(tuple(self._step_times), self._floor_s, self._first_s, self._late_s)

    def accuse_in(self, facts: Mapping[int, RankFacts]) -> dict[int, RankFacts]:
        """The facts, with the accusations of those who have nothing worse to show."""
        accused = self._accused
        return {
            r: replace(f, fault=accused[r]) if r in accused and not f.exit_code and f.fault is None else f
            for r, f in facts.items()
        }

    def forget(self, job: Job) -> None:
        """Who has been replaced stands accused of nothing."""
        self._accused = {r: f for r, f in self._accused.items() if job.incarnations[r] == f.incarnation}

    def look(self, job: Job, facts: Mapping[int, RankFacts], late_s: float, deaf: bool, now: float) -> list[RankFacts]:
        """Returns the ranks whose stacks are to be looked at.

        `late_s`: how late the agents themselves are; `deaf`: some of them have not been heard for a while.
        """
        self._late_s, self._ask = late_s, []
        here = current(job, facts)
        if job.phase is Phase.PAUSING and job.deadline is not None and now > job.deadline - job.limits.pause_s / 2:
            self._ask_for_stacks(f for f in here.values() if f.stage in _AT_WORK)
        if job.phase is Phase.PAUSING:
            self._look_for_silence(here, now)
        if job.phase is Phase.FORMING and job.deadline is not None and now > job.deadline - job.limits.form_s * 0.8:
            late = [f for f in here.values() if f.stage is not Stage.FORMED or f.generation != job.generation]
            self._ask_for_stacks(late)
        for f in here.values():
            if f.library and f.alive and f.progress.beat_s > self._first_s:
                self._accuse(f, "hang", f"its process has shown no life for {f.progress.beat_s:.1f} s", now)
        self._look_for_stopped(job, here, now)
        self._judge(self._suspicion(job, here, deaf, now), here, now)
        return self._ask

    def _look_for_stopped(self, job: Job, here: Mapping[int, RankFacts], now: float) -> None:
        """In the set-up, in a section, after the loop: anything may take long, but who is stopped gets nowhere.

        Of a script without the library nothing is waited for, and of steps others tell how long they wait.
        """
        slow = any(f.progress.section for f in here.values())
        at_steps = job.phase is Phase.RUNNING and len(self._step_times) >= 3 and not slow
        if at_steps or not any(f.library for f in here.values()):
            return
        limit_s = max(STOPPED_S, self._floor_s)
        stopped = [f for f in here.values() if f.alive and f.progress.stopped_s > limit_s / 2]
        self._ask_for_stacks(stopped)
        for f in stopped:
            lasts = f.progress.stopped_s
            if lasts > limit_s:
                self._accuse(f, "hang", f"its process has been stopped (SIGSTOP) for {lasts:.1f} s", now, since_s=lasts)

    def _look_for_silence(self, here: Mapping[int, RankFacts], now: float) -> None:
        """A rank that is waited for at the fence and shows no life at all is stopped: no need to wait it out."""
        limit_s = max(1.0, self._limit_s())
        for f in here.values():
            silent = f.progress.beat_s
            if f.stage in _AT_WORK and f.alive and silent > limit_s:
                self._ask_for_stacks([f])
                self._accuse(f, "hang", f"its process has shown no life for {silent:.1f} s during a pause", now)

    def _suspicion(self, job: Job, here: Mapping[int, RankFacts], deaf: bool, now: float) -> health.Suspicion | None:
        """Who holds the others up, by what all of them show.

        A rank that has ended well too early is one of them: where connections do not tell, the others wait for it. One
        that has left its loop after a step that another has still to end waits for that one.
        """
        if self._going != (job.phase, job.generation):
            self._going, self._going_since = (job.phase, job.generation), now
        if deaf:
            return None
        stages = (Stage.FORMED, Stage.READY, Stage.TRAINING, Stage.DONE, Stage.AFTER, Stage.LEFT)
        members = {r: f for r, f in here.items() if f.stage in stages or f.ended_well}
        if job.phase not in (Phase.RUNNING, Phase.FINISHING) or len(members) < len(job.ranks):
            return None
        if any(f.generation != job.generation for f in members.values()):
            return None
        waits = (Stage.DONE, Stage.LEFT, Stage.READY)  # for the others, and when all are there for us
        if job.phase is Phase.RUNNING and all(f.stage in waits for f in members.values()):
            return None
        least = min(f.progress.step for f in members.values())
        ahead = {r for r, f in members.items() if (f.broke or not f.alive) and f.ended_at > least}
        self._gone = gone = {r for r, f in members.items() if _is_gone(f, members) and r not in ahead}
        progress = {r: f.progress for r, f in members.items()}
        progress |= {r: Progress(step=f.progress.step, idle_s=f.dead_s) for r, f in members.items() if not f.alive}
        progress |= {r: Progress(step=members[r].progress.step, idle_s=now) for r in gone}
        if job.phase is Phase.RUNNING:  # who is through the loop waits for the others, as at a gate
            last = max(p.launched for p in progress.values())
            done = [r for r, f in members.items() if (f.stage in waits and r not in gone) or r in ahead]
            progress |= {r: replace(progress[r], gate=True, section=False, launched=last) for r in done}
            progress |= {r: replace(progress[r], section=False) for r, f in members.items() if f.stage is Stage.FORMED}
        if gone:  # slowness may be legal, but who is gone does not come back
            progress = {r: replace(p, section=False) for r, p in progress.items()}
        begun = all(p.step >= 0 for p in progress.values())
        limit_s = self._limit_s() if begun and job.phase is Phase.RUNNING else job.limits.start_s
        found = health.suspect(progress, limit_s)
        if gone and begun:  # however slow the others may be: what they wait for does not come
            sooner = health.suspect(progress, min(limit_s, max(self._floor_s, self._late_s)))
            found = sooner if sooner is not None and gone.issuperset(sooner.ranks) else found
        if found is not None and now - self._going_since < found.waited_s:
            waited = now - self._going_since  # nobody can have waited longer in this generation
            found = replace(found, waited_s=waited) if waited >= found.limit_s / 2 else None
        if found is None:
            self._captured.clear()
        return found

    def _judge(self, found: health.Suspicion | None, here: Mapping[int, RankFacts], now: float) -> None:
        """Who has been under the same suspicion for a moment is accused."""
        suspects = found.ranks if found is not None else None
        if suspects != self._suspects:
            self._suspects, self._suspected_at = suspects, now
        if found is None:
            return
        self._ask_for_stacks(here[r] for r in found.ranks)
        if not found.certain or now - self._suspected_at < CONFIRM_S:
            return
        for r in found.ranks:
            if r not in self._gone:
                self._accuse(here[r], "hang", found.why, now, since_s=found.waited_s)
            else:  # it has ended well, and the others wait for it
                self._accused[r] = replace(exit_fault(here[r], here), at=now, since_s=found.waited_s)
        if not found.ranks:
            first = here[min(here)]
            self._accuse(first, "stall", found.why, now, retryable="communication", since_s=found.waited_s)

    def _accuse(self, f: RankFacts, kind: str, why: str, now: float, retryable: str = "", since_s: float = 0.0) -> None:
        step = f.progress.step
        self._accused[f.rank] = FaultReport(
            kind, f.rank, f.incarnation, step=step, text=why, retryable=retryable, at=now, since_s=since_s
        )

    def _ask_for_stacks(self, suspects: Iterable[RankFacts]) -> None:
        new = [f for f in suspects if (f.rank, f.incarnation) not in self._captured]
        self._captured |= {(f.rank, f.incarnation) for f in new}
        self._ask += new


def _is_gone(f: RankFacts, members: Mapping[int, RankFacts]) -> bool:
    """Its script has ended before the others were through: it is not there, or only for the state that it holds. Or
    its loop has: it waits for the others at the end, and they have begun a step that it does not have.
    """
    if not f.alive or (f.broke and f.stage is Stage.LEFT):
        return True
    beyond = (o for o in members.values() if o.stage is Stage.TRAINING and o.progress.inside and o.progress.pending_s)
    return f.stage is Stage.DONE and any(o.progress.step >= f.step for o in beyond)
