"""The world of one seed: a heap of events, a virtual clock, and whoever lives in it."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from random import Random
from typing import Any

from onward.core.intake import Notice
from onward.core.job import Job, Limits
from onward.core.moving import why_left
from onward.manager.settings import ManagerSettings
from onward.wire.messages import FaultRequest

from .fabric import Fabric
from .managers import SimManager
from .network import Network
from .promises import Broken, Promises
from .ranks import RankProcess
from .scenario import Fault, Scenario, draw
from .shells import SimAgent

LIMITS = Limits(
    pause_s=0.5, mend_s=6.0, reschedule_s=3.0, last_call_s=2.0, quorum_s=8.0, form_s=2.0, start_s=4.0, save_s=3.0
)
NODE_TIMEOUT_S = 4.0
HANG_FLOOR_S = 0.7
HANG_FIRST_S = 2.5
PATIENCE_S = 60.0  # after the last fault: several times the sum of the deadlines above
MAX_EVENTS = 200_000
MOST_PODS = 12


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
            limits=replace(
                LIMITS,
                max_restarts=s.max_restarts,
                hot_switch=s.hot_switch,
                reschedule_s=s.reschedule_s,
                min_nodes=s.min_nodes or LIMITS.min_nodes,
            ),
            hang_floor_s=HANG_FLOOR_S,
            hang_first_s=HANG_FIRST_S,
            node_timeout_s=NODE_TIMEOUT_S,
            fail_stop_s=s.fail_stop_s,
        )
        self.disk: dict[int, dict[str, Any]] = {}  # published checkpoints, seen by every node
        self.unfinished: dict[tuple[int, int, int], dict[str, Any]] = {}  # (step, generation, node) -> its part
        self.network = Network(self)
        self.somebody_left = False
        self.seen_in_office: list[SimManager] = []
        self.managers: list[SimManager] = []  # the living ones, in office or not
        self.term = 0  # the highest that anybody has been in office with
        self.job: Job | None = None  # what the manager in office wants
        self.agents = [SimAgent(self, n) for n in range(s.nodes + len(s.standbys))]
        self.by_id = {a.member.id: a for a in self.agents}
        self.phase = ""
        self._given_up: set[int] = set()  # agents whose pods are being taken away
        self.records = 0  # written by all managers together
        self._waiting_for_point: dict[str, list[Fault]] = {}
        self._waiting_for_phase: list[Fault] = []
        self._entered: dict[str, int] = {}
        for fault in s.faults:
            if fault.point:
                self._waiting_for_point.setdefault(fault.point, []).append(fault)
            elif fault.phase:
                self._waiting_for_phase.append(fault)
            elif not fault.record:
                self.after(fault.at, self.fire, fault)
        for agent in self.agents[: s.nodes]:
            agent.begin()
        for agent, at in zip(self.agents[s.nodes :], s.standbys, strict=True):
            self.after(at, agent.begin)

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
        job = self.job
        return Outcome(
            seed=self.seed,
            scenario=self.scenario,
            phase=self.phase if broken else self.promises.ending,
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
            if self.somebody_left:
                self.somebody_left = False
                if not any(a.running for a in self.agents):
                    return

    @property
    def attempts(self) -> int:
        """How often everybody was started again."""
        return self.job.attempt if self.job is not None else 0

    # ------------------------------------------------------------------------------------------ managers

    @property
    def manager(self) -> SimManager | None:
        """The one in office. Behind a cut there may be one of an older term that does not know better."""
        for m in self.managers:
            if m.in_office and m.logic.job is not None and m.logic.job.term >= self.term:
                self.term = m.logic.job.term
        return next((m for m in self.managers if m.in_office and m.logic.job.term == self.term), None)  # type: ignore[union-attr]

    def job_changed(self, job: Job) -> None:
        """The manager in office wants something else."""
        self.job, phase = job, job.phase.value
        if self.scenario.pods:
            self._take_away(job)
        if self.manager is not None and self.manager not in self.seen_in_office:
            self.seen_in_office.append(self.manager)
        if phase == self.phase:
            return
        self.phase = phase
        self._entered[phase] = self._entered.get(phase, 0) + 1
        for fault in [f for f in self._waiting_for_phase if f.phase == phase and f.nth == self._entered[phase]]:
            self._waiting_for_phase.remove(fault)
            self.after(fault.delay_s, self.fire, fault)

    # ------------------------------------------------------------------------------------------ pods

    def _take_away(self, job: Job) -> None:
        """The operator hears that a pod is of no use any more."""
        for agent in self.agents:
            if agent.running and agent.index not in self._given_up and why_left(job, agent.member):
                self._given_up.add(agent.index)
                self.after(self.lag(0.2), agent.die)

    @property
    def replaced_pods(self) -> int:
        return len(self._given_up)

    def on_lost(self, agent: SimAgent) -> None:
        """And makes another, when one is gone."""
        if self.scenario.pods and len(self.agents) < MOST_PODS:
            self.after(self.lag(0.5), self._make_pod)

    def _make_pod(self) -> None:
        doors = [a.member.manager for a in self.agents if a.running]
        if doors:
            made = SimAgent(self, len(self.agents), doors)
            self.agents.append(made)
            self.by_id[made.member.id] = made
            self.note(f"{made} is a new pod")
            made.begin()

    # ------------------------------------------------------------------------------------------ faults

    def at_point(self, process: RankProcess, point: str, step: int) -> Fault | None:
        """The fault that is due here, if any."""
        waiting = self._waiting_for_point.get(point)
        if not waiting:
            return None
        for fault in waiting:
            if fault.rank != process.rank or (fault.step >= 0 and fault.step != step):
                continue
            if fault.kind == "kill-node" and process.agent.index != fault.node >= 0:
                continue
            if (fault.replaced and not process.stand_in) or (process.is_spare and not fault.replaced):
                continue
            if not fault.always:
                waiting.remove(fault)
            self._count_fault(fault, f"{process} at {point}, step {step}")
            return fault
        return None

    def at_record(self) -> Fault | None:
        """One more has been written. The fault that is due, if any."""
        self.records += 1
        for fault in self.scenario.faults:
            if fault.record == self.records:
                self._count_fault(fault, f"manager, having written record {self.records}, journal {fault.journal}")
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
                manager = self.manager or next(iter(self.managers), None)
                if manager is not None:
                    manager.host.hosting.crash(fault.journal, alive=fault.kind == "manager-usurp")
            case "partition" | "silence":
                if self.agents[fault.node].running:
                    self._count_fault(fault, f"agent {fault.node} for {fault.for_s} s")
                    self.agents[fault.node].office.cut_off(fault.for_s, silent=fault.kind == "silence")
            case "sub-health":
                self._call_sub_healthy(fault)
            case "kill-node":
                if self.agents[fault.node].running:
                    self._count_fault(fault, f"agent {fault.node}")
                    self.agents[fault.node].die()
            case "cut":
                self._count_fault(fault, f"{fault.links} of agent {fault.node}, {fault.other} for {fault.for_s} s")
                self._cut(fault)
            case "drop-feed":
                streams = [x for x in self.fabric.streams if x.open and x.source.rank == fault.rank]
                if streams:
                    self._count_fault(fault, f"between rank {fault.rank} and who follows it")
                for stream in streams:
                    stream.cut()
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

    def _call_sub_healthy(self, fault: Fault) -> None:
        """Somebody publishes it, as soon as a manager is there to hear it."""
        manager, uid = self.manager, f"{fault.node}@{fault.at}"
        if manager is None or self.holder_of(fault.node) is None:
            self.after(0.1, self._call_sub_healthy, fault)
            return
        if not fault.fired:
            self._count_fault(fault, f"node {fault.node}")
        notice = Notice(op="report", level="sub-health", code="x", node=str(fault.node))
        manager.logic.on_fault_request("", FaultRequest(uid=uid, notice=notice), manager.clock)
        manager.flush()
        if not manager.alive:  # and has not answered
            self.after(0.1, self._call_sub_healthy, fault)

    def _cut(self, fault: Fault) -> None:
        side = frozenset({fault.node, fault.other} - {-1})
        self.network.cut(side, fault.links, fault.for_s)
        if fault.silent:
            return
        crossing = [a for a in self.agents if a.running]
        for agent in crossing:
            c = agent.office.connection
            if c is not None and (agent.index in side) != (c.host.index in side) and fault.links in ("all", "managers"):
                self.after(self.lag(0.004), agent.office.on_closed, c)
                if c.manager is not None:
                    self.after(self.lag(0.004), c.reset)
            for other in crossing:
                if (agent.index in side) != (other.index in side) and fault.links in ("all", "peers"):
                    self.after(self.lag(0.004), agent.on_peer_lost, other.index)
        if fault.links == "all":
            self.fabric.cut_links(side)

    # ------------------------------------------------------------------------------------------ who is who

    def holder_of(self, node: int) -> SimAgent | None:
        """The agent that has this place, in the eyes of the manager in office."""
        if self.job is None:
            return self.agents[node]
        member = self.job.places[node]
        return self.by_id[member.id] if member is not None else None

    def agent_of(self, rank: int) -> SimAgent | None:
        return self.holder_of(rank // (self.scenario.world_size // self.scenario.nodes))

    def process_of(self, rank: int) -> RankProcess | None:
        """The process that fills this rank's place now."""
        agent = self.agent_of(rank)
        number = agent.logic.current.get(rank) if agent is not None else None
        return agent.children.get(number) if agent is not None and number is not None else None

    def _spare_of(self, rank: int) -> RankProcess | None:
        agent = self.agent_of(rank)
        for p in agent.children.values() if agent is not None else ():
            if p.rank == rank and p.is_spare and p.alive:
                return p
        return None


def simulate(seed: int, trace: bool = False) -> Outcome:
    """Run one seed to its end."""
    return World(seed, trace).run()
