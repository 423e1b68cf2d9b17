"""The world of one seed: a heap of events, a virtual clock, and whoever lives in it."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from random import Random
from typing import Any

from onward.core.recovery import Limits
from onward.manager.logic import ManagerSettings

from .fabric import Fabric
from .promises import Broken, Promises
from .ranks import RankProcess
from .scenario import Fault, Scenario, draw
from .shells import SimAgent, SimManager

LIMITS = Limits(pause_s=0.5, mend_s=6.0, form_s=2.0, start_s=4.0, save_s=3.0)
HANG_FLOOR_S = 0.7
HANG_FIRST_S = 2.5
PATIENCE_S = 60.0  # after the last fault: several times the sum of the deadlines above
MAX_EVENTS = 200_000


@dataclass
class Outcome:
    """How a seed ended. `broken` is empty when every promise was kept."""

    seed: int
    scenario: Scenario
    phase: str
    broken: str
    events: int
    virtual_s: float
    fired: int
    restarts: int
    incidents: int
    trace: list[str] | None

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace or []).encode()).hexdigest()


class World:
    """Deterministic: same seed, same history. Nothing here or below reads a clock or any other source of chance."""

    def __init__(self, seed: int, trace: bool = False, scenario: Scenario | None = None) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.scenario = scenario if scenario is not None else draw(self.rng)
        self.now = 0.0
        self.trace: list[str] | None = [] if trace else None
        self.events = 0
        self.last_trouble = 0.0
        self.fired: list[Fault] = []
        self._heap: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._count = 0
        s = self.scenario
        self.promises = Promises(self)
        self.fabric = Fabric(self)
        self.settings = ManagerSettings(
            world_size=s.world_size,
            nodes=s.nodes,
            policies=s.policies,
            limits=replace(LIMITS, max_restarts=s.max_restarts),
            hang_floor_s=HANG_FLOOR_S,
            hang_first_s=HANG_FIRST_S,
        )
        self.journal: list[bytes] = []
        self.disk: dict[int, dict[str, Any]] = {}  # published checkpoints, seen by every node
        self.unfinished: dict[tuple[int, int, int], dict[str, Any]] = {}  # (step, generation, node) -> its part
        self.old_managers: list[SimManager] = []
        self.agents = [SimAgent(self, n) for n in range(s.nodes)]
        self.agents_done = 0
        self.manager: SimManager | None = None
        self.phase = ""
        self._waiting_for_point: dict[str, list[Fault]] = {}
        self._waiting_for_phase: list[Fault] = []
        self._entered: dict[str, int] = {}
        for fault in s.faults:
            if fault.point:
                self._waiting_for_point.setdefault(fault.point, []).append(fault)
            elif fault.phase:
                self._waiting_for_phase.append(fault)
            else:
                self.after(fault.at, self.fire, fault)
        self.start_manager("kept")
        for agent in self.agents:
            agent.begin()

    # ------------------------------------------------------------------------------------------ events

    def after(self, delay_s: float, do: Callable[..., Any], *args: Any) -> None:
        self._count += 1
        heappush(self._heap, (self.now + delay_s, self._count, do, args))

    def note(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:10.6f} {text}")

    def lag(self, most_s: float) -> float:
        """A short delay, now and then a long one."""
        r = self.rng.random()
        return most_s * r if r < 0.97 else most_s * r * 8

    def run(self) -> Outcome:
        broken = ""
        try:
            self._loop()
            self.promises.at_the_end()
        except Broken as e:
            broken = str(e)
            self.note(f"BROKEN {broken}")
        except Exception as e:  # an internal error is a broken promise too: unknown events are answered, not raised on
            broken = f"internal error: {e!r}\n{traceback.format_exc()}"
            self.note(f"BROKEN {broken}")
        job = self.manager.logic.job if self.manager is not None else None
        return Outcome(
            seed=self.seed,
            scenario=self.scenario,
            phase=self.phase,
            broken=broken,
            events=self.events,
            virtual_s=self.now,
            fired=len(self.fired),
            restarts=job.restarts_used if job else 0,
            incidents=job.incidents if job else 0,
            trace=self.trace,
        )

    def _loop(self) -> None:
        heap, check = self._heap, self.promises.after_event
        while heap:
            at, _, do, args = heappop(heap)
            if at > self.now:
                self.now = at
            self.events += 1
            do(*args)
            check()
            if self.now - self.last_trouble > PATIENCE_S or self.events > MAX_EVENTS:
                self.promises.endless()
            if self.agents_done == len(self.agents):
                return

    @property
    def attempts(self) -> int:
        """How often everybody was started again."""
        job = self.manager.logic.job if self.manager is not None else None
        return job.attempt if job is not None else 0

    # ------------------------------------------------------------------------------------------ managers

    def start_manager(self, journal: str) -> None:
        record = b""
        if journal == "kept" and self.journal:
            record = self.journal[-1]
        elif journal == "torn" and len(self.journal) > 1:
            record = self.journal[-2]
            self.journal.pop()
        elif journal != "kept":
            self.journal.clear()
        self.note(f"manager starts, journal {journal}")
        self.manager = SimManager(self, record)

    def job_changed(self, phase: str) -> None:
        """The manager in office wants something else."""
        if phase == self.phase:
            return
        self.phase = phase
        self._entered[phase] = self._entered.get(phase, 0) + 1
        for fault in [f for f in self._waiting_for_phase if f.phase == phase and f.nth == self._entered[phase]]:
            self._waiting_for_phase.remove(fault)
            self.after(fault.delay_s, self.fire, fault)

    # ------------------------------------------------------------------------------------------ faults

    def at_point(self, process: RankProcess, point: str, step: int) -> Fault | None:
        """The fault that is due here, if any."""
        waiting = self._waiting_for_point.get(point)
        if not waiting:
            return None
        for fault in waiting:
            if fault.rank != process.rank or (fault.step >= 0 and fault.step != step):
                continue
            if (fault.replaced and not process.stand_in) or (process.is_spare and not fault.replaced):
                continue
            if not fault.always:
                waiting.remove(fault)
            self._count_fault(fault, f"{process} at {point}, step {step}")
            return fault
        return None

    def _count_fault(self, fault: Fault, where: str) -> None:
        fault.fired += 1
        self.fired.append(fault)
        self.last_trouble = self.now + fault.for_s
        self.note(f"FAULT {fault.kind}: {where}")

    def fire(self, fault: Fault) -> None:
        """A fault that fires by the clock or by the job's phase."""
        match fault.kind:
            case "manager-kill" | "manager-usurp":
                self._count_fault(fault, f"journal {fault.journal}")
                old, self.manager = self.manager, None
                if old is not None and fault.kind == "manager-kill":
                    old.die()
                elif old is not None:
                    old.retire()
                self.after(self.lag(0.3), self._next_manager, fault.journal)
            case "partition" | "silence":
                self._count_fault(fault, f"node {fault.node} for {fault.for_s} s")
                self.agents[fault.node].cut_off(fault.for_s, silent=fault.kind == "silence")
            case "kill-spare":
                spare = self._spare_of(fault.rank)
                if spare is not None:
                    self._count_fault(fault, str(spare))
                    spare.die(-9)
                elif self.now < fault.at + 5.0:
                    self.after(0.02, self.fire, fault)  # spares come when all is calm
            case _:
                process = self.process_of(fault.rank)
                if process is not None and process.alive and not (fault.kind == "hang" and process.patient):
                    self._count_fault(fault, f"{process}, which {process.doing()}")
                    process.suffer(fault)

    def _next_manager(self, journal: str) -> None:
        if self.manager is None:
            self.start_manager(journal)

    # ------------------------------------------------------------------------------------------ who is who

    def agent_of(self, rank: int) -> SimAgent:
        return self.agents[rank // (self.scenario.world_size // self.scenario.nodes)]

    def process_of(self, rank: int) -> RankProcess | None:
        """The process that fills this rank's place now."""
        agent = self.agent_of(rank)
        number = agent.logic.current.get(rank)
        return agent.children.get(number) if number is not None else None

    def _spare_of(self, rank: int) -> RankProcess | None:
        for p in self.agent_of(rank).children.values():
            if p.rank == rank and p.is_spare and p.alive:
                return p
        return None


def simulate(seed: int, trace: bool = False) -> Outcome:
    """Run one seed to its end."""
    return World(seed, trace).run()
