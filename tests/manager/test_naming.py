"""The guilty rank is named: in whatever order the evidence comes, and nobody else with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from played import facts_of

from onward.core.facts import FaultReport, Progress, RankFacts, Scope, Stage
from onward.core.incident import Incident
from onward.core.job import Limits, Phase
from onward.core.membership import Member
from onward.core.policy import parse_policies
from onward.manager.logic import ManagerLogic
from onward.manager.settings import ManagerSettings
from onward.wire.messages import CaptureStacks, Orders

WORLD, STOPPED = 4, 2
FLOOR_S, TICK_S = 0.7, 0.05


class Story:
    """A manager, the one agent it hears, and a clock."""

    def __init__(self, begins: bool = True) -> None:
        policies = parse_policies("retry,recover-in-place")
        self.manager = ManagerLogic(
            ManagerSettings(WORLD, 1, policies, Limits(), hang_floor_s=FLOOR_S, hang_first_s=120.0)
        )
        self.now, self._version = 100.0, 0
        self._orders: Orders | None = None
        self._read = 0
        self.ranks = {
            r: RankFacts(r, 0, 1, pid=10 + r, stage=Stage.SETUP, library=True, progress=Progress(step=0))
            for r in range(WORLD)
        }
        if not begins:
            return
        self.tell()
        self.all(stage=Stage.FORMED, generation=1)
        for step in range(1, 5):
            self.all(
                stage=Stage.TRAINING, generation=1, resumed=True, step=step, clean=True, scope=Scope.STEP,
                local_steps=(step - 1, step), progress=Progress(step=step, launched=step, step_s=0.05),
            )  # fmt: skip
        assert self.phase is Phase.RUNNING

    @property
    def phase(self) -> Phase:
        assert self.manager.job is not None
        return self.manager.job.phase

    @property
    def incident(self) -> Incident:
        assert self.manager.job is not None
        assert self.manager.job.incident is not None
        return self.manager.job.incident

    def tell(self) -> None:
        """Tell, and take whatever orders come back, until there are no more."""
        for _ in range(5):
            self._say()
            new = [m for _, m in self.manager.out[self._read :] if isinstance(m, Orders)]
            self._read = len(self.manager.out)
            if not new:
                return
            self._orders = new[-1]

    def _say(self) -> None:
        self._version += 1
        ranks = [self.ranks[r] for r in range(WORLD)]
        self.manager.on_facts(facts_of(Member(id="a", nproc=WORLD), self._version, self._orders, ranks), self.now)

    def all(self, **changes: object) -> None:
        self.ranks = {r: replace(f, **changes) for r, f in self.ranks.items()}  # type: ignore[arg-type]
        self.tell()

    def pass_time(self, until: Phase, beating: bool = False) -> None:
        """Ticks in which nobody moves and one rank shows no life (unless it beats), until the job is in a phase."""
        for _ in range(200):
            if self.phase is until:
                return
            self.now += TICK_S
            for r, f in self.ranks.items():
                p = f.progress
                p = replace(p, idle_s=p.idle_s + TICK_S, pending_s=p.pending_s + TICK_S if p.pending_s else 0.0)
                if r == STOPPED and not beating:
                    p = replace(p, beat_s=p.beat_s + TICK_S)
                self.ranks[r] = replace(f, progress=p)
            self.tell()
        raise AssertionError(f"still {self.phase} after {200 * TICK_S:g} s")

    def enter(self, launched: dict[int, int]) -> None:
        """Each rank waits in that collective."""
        for r, number in launched.items():
            p = replace(self.ranks[r].progress, launched=number, pending_s=0.001)
            self.ranks[r] = replace(self.ranks[r], progress=p)
        self.tell()

    def reach_the_fence(self) -> None:
        """All but the stopped one."""
        assert self.manager.job is not None
        for r in set(range(WORLD)) - {STOPPED}:
            progress = replace(self.ranks[r].progress, pending_s=0.0)
            self.ranks[r] = replace(
                self.ranks[r], stage=Stage.PAUSED, generation=self.manager.job.generation, progress=progress
            )
        self.tell()

    def replaced(self) -> list[int]:
        assert self.manager.job is not None
        return [r for r, i in enumerate(self.manager.job.incarnations) if i > 1]

    def until_replaced(self) -> None:
        for _ in range(400):
            if self.replaced():
                return
            self.now += TICK_S
            f = self.ranks[STOPPED]
            beat = f.progress.beat_s + TICK_S
            self.ranks[STOPPED] = replace(f, progress=replace(f.progress, beat_s=beat))
            self.tell()
        raise AssertionError("the stopped rank was never replaced")

    def check(self) -> None:
        assert self.replaced() == [STOPPED]
        assert self.incident.root_cause.kind == "hang"
        blamed = {f.rank for f in self.incident.faults if f.retryable != "communication"}
        assert blamed == {STOPPED}
        assert self.incident.headline() == f"rank {STOPPED} hung"
        asked = [m for _, m in self.manager.out if isinstance(m, CaptureStacks)]
        assert STOPPED in {m.rank for m in asked}, "its stacks are taken while it can still be asked"


def test_stopped_in_the_collective_in_which_all_others_wait() -> None:
    story = Story()
    story.enter(dict.fromkeys(range(WORLD), 9))
    story.pass_time(until=Phase.PAUSING)
    story.check()


def test_stopped_in_a_collective_that_some_have_left_and_some_have_not() -> None:
    """In a ring the neighbours get out one after the other; who is still inside is held up too, not guilty."""
    story = Story()
    story.enter({0: 10, 1: 10, STOPPED: 9, 3: 9})
    story.pass_time(until=Phase.PAUSING)
    story.check()


def test_stopped_when_all_had_waited_so_long_that_a_retry_was_begun() -> None:
    """The connection itself was blamed first, then one does not come to the fence and shows no life."""
    story = Story()
    story.enter(dict.fromkeys(range(WORLD), 9))
    story.pass_time(until=Phase.PAUSING, beating=True)
    assert [f.kind for f in story.incident.faults] == ["stall"]
    story.reach_the_fence()
    story.until_replaced()
    story.check()


def test_stopped_while_a_pause_for_another_fault_is_under_way() -> None:
    story = Story()
    story.ranks[0] = replace(
        story.ranks[0], fault=FaultReport("exception", 0, 1, text="reset by peer", retryable="communication", at=1.0)
    )
    story.tell()
    assert story.phase is Phase.PAUSING
    story.reach_the_fence()
    story.until_replaced()
    story.check()


@pytest.mark.parametrize("library", [True, False], ids=["while the first group forms", "before it came to the library"])
def test_stopped_in_its_set_up(library: bool) -> None:
    """Nobody knows how long a set-up may take; the kernel knows that this process does nothing."""
    story = Story(begins=False)
    if not library:
        early = RankFacts(STOPPED, 0, 1, pid=12, stage=Stage.STARTING)
        story.ranks[STOPPED] = early
    story.tell()
    assert story.phase is (Phase.FORMING if library else Phase.STARTING)
    stopped_at = story.now
    while not story.replaced():
        story.now += TICK_S
        stopped_s = story.now - stopped_at
        assert stopped_s < 3.0, "it is found at once"
        f = story.ranks[STOPPED]
        story.ranks[STOPPED] = replace(f, progress=replace(f.progress, stopped_s=stopped_s))
        story.tell()
    assert story.replaced() == list(range(WORLD)), "there is nothing to go on from"
    assert story.incident.headline() == f"rank {STOPPED} hung"
    assert story.incident.opened_at == pytest.approx(stopped_at), "it began when the process was stopped"
    assert STOPPED in {m.rank for _, m in story.manager.out if isinstance(m, CaptureStacks)}


def test_stopped_in_a_section() -> None:
    """The others wait for it there, as long as they like."""
    story = Story()
    stopped_at = story.now
    while not story.replaced():
        story.now += TICK_S
        stopped_s = story.now - stopped_at
        assert stopped_s < 3.0, "it is found at once"
        for r, f in story.ranks.items():
            stopped = stopped_s if r == STOPPED else 0.0
            story.ranks[r] = replace(f, progress=replace(f.progress, section=True, stopped_s=stopped))
        story.tell()
        if story.phase is Phase.PAUSING:
            story.reach_the_fence()
    assert story.replaced() == [STOPPED]
    assert story.incident.headline() == f"rank {STOPPED} hung"


def test_a_script_without_the_library_may_be_stopped() -> None:
    """Nothing of it is waited for; whoever stopped it may let it go on."""
    story = Story(begins=False)
    story.ranks = {r: RankFacts(r, 0, 1, pid=10 + r, progress=Progress(stopped_s=60.0)) for r in range(WORLD)}
    for _ in range(20):
        story.now += TICK_S
        story.tell()
    assert story.replaced() == []
