"""A manager with agents that do at once what they are told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from played import facts_of

from onward.core.facts import Progress, RankFacts, Scope, Stage
from onward.core.intake import Notice
from onward.core.job import Limits, Phase
from onward.core.membership import Member
from onward.core.policy import parse_policies
from onward.core.published import Rules
from onward.manager.logic import ManagerLogic
from onward.manager.settings import ManagerSettings
from onward.wire.messages import FaultAnswer, FaultRequest, IncidentNote, Orders, Times

POLICIES = parse_policies("retry,recover-in-place,recover,dump")


class Driven:
    """A manager with agents that do at once what they are told, and a clock that is turned by hand."""

    at_once = True  # thinks at each word from an agent; else when all have spoken, as the server does

    def __init__(self, nodes: int = 2, local: int = 2, standby: int = 1, **rules: Any) -> None:
        self.settings = ManagerSettings(
            world_size=nodes * local,
            nodes=nodes,
            policies=POLICIES,
            limits=Limits(),
            rules=Rules(**rules),
            wall_s=1_000_000.0,
            seat="seat",
        )
        self.local = local
        self.now = 100.0
        self.agents = [Member(id=f"a{n}", host=f"h{n}", address=f"10.0.0.{n}", wanted=n) for n in range(nodes)]
        self.agents += [Member(id=f"s{n}", host=f"s{n}", address=f"10.0.1.{n}", standby=True) for n in range(standby)]
        self.logic = ManagerLogic(self.settings)
        self.orders: dict[str, Orders] = {}
        self.ranks: dict[int, RankFacts] = {}
        self.answers: list[FaultAnswer] = []
        self.incidents: list[str] = []
        self.replaced: set[int] = set()  # are parked when the others stand at the fence
        self.times = Times()
        self._version = 0
        self._asked = 0
        self.speak()  # the agents come, and are given their places
        self.speak(stage=Stage.SETUP)
        self.speak(stage=Stage.FORMED)
        self.speak(stage=Stage.READY)
        self.train()
        assert self.phase is Phase.RUNNING

    @property
    def phase(self) -> Phase:
        assert self.logic.job is not None
        return self.logic.job.phase

    @property
    def places(self) -> list[str]:
        assert self.logic.job is not None
        return [m.id if m is not None else "-" for m in self.logic.job.places]

    @property
    def incarnations(self) -> tuple[int, ...]:
        assert self.logic.job is not None
        return self.logic.job.incarnations

    def speak(self, **changes: Any) -> None:
        """All agents tell how their ranks are, by the orders they have."""
        self._version += 1
        for agent in self.agents:
            orders = self.orders.get(agent.id)
            ranks = [self.fact(o.rank, orders.node, o.incarnation, **changes) for o in (orders.ranks if orders else [])]
            more: dict[str, Any] = {"kept": {r: [19, 20] for r in self.kept_by(agent)}}
            more |= {"times": self.times}
            more |= {"seat": orders.seat, "record": orders.job} if orders else {}
            self.logic.on_facts(facts_of(agent, self._version, orders, ranks, **more), self.now, self.at_once)
        if not self.at_once:
            self.logic.think(self.now)
        self.hear()

    def kept_by(self, agent: Member) -> Iterable[int]:
        """The ranks of other nodes whose local state it keeps."""
        return range(self.settings.world_size)

    def fact(self, rank: int, node: int, incarnation: int, **changes: Any) -> RankFacts:
        old = self.ranks.get(rank)
        if old is None or old.incarnation != incarnation or old.node != node:
            old = RankFacts(rank, node, incarnation, pid=1, stage=Stage.SETUP, library=True)
        generation = self.logic.job.generation if self.logic.job is not None else 0
        if rank in self.replaced:
            changes |= {"stage": Stage.PARKED, "step": -1}
        self.ranks[rank] = replace(old, generation=generation, **changes)
        return self.ranks[rank]

    def train(self, step: int = 20) -> None:
        self.speak(
            stage=Stage.TRAINING,
            step=step,
            clean=True,
            scope=Scope.STEP,
            resumed=True,
            local_steps=(step - 1, step),
            progress=Progress(step=step),
        )

    def hear(self) -> None:
        out, self.logic.out = self.logic.out, []
        for agent, message in out:
            match message:
                case Orders():
                    assert agent is not None
                    self.orders[agent] = message
                case FaultAnswer():
                    self.answers.append(message)
                case IncidentNote():
                    self.incidents.append(message.incident.policy)

    def ask(self, uid: str = "", **words: Any) -> FaultAnswer:
        self._asked += 1
        self.now += 0.01
        request = FaultRequest(uid=uid or f"request {self._asked}", notice=Notice(**words))
        self.logic.on_fault_request("a0", request, self.now)
        self.hear()
        return self.answers[-1]

    def report(self, level: str, code: str = "c1", **words: Any) -> FaultAnswer:
        answer = self.ask(op="report", level=level, code=code, **words)
        assert not answer.problems
        return answer

    def recover(self) -> None:
        """Everybody does what a recovery asks of them."""
        old = {rank: f.incarnation for rank, f in self.ranks.items()}
        self.replaced = {rank for rank, number in enumerate(self.incarnations) if number != old[rank]}
        self.speak(stage=Stage.PAUSED, step=20, clean=True, resumed=False, local_steps=(19, 20))
        self.replaced = set()
        self.speak(stage=Stage.FORMED, resumed=False)
        assert self.phase is Phase.RUNNING
        self.train(21)

    def pass_time(self, seconds: float) -> None:
        while seconds > 0:
            self.now += min(seconds, 0.4)
            seconds -= 0.4
            self.train(22)

    def replace_manager(self) -> None:
        """Killed, and its journal is gone with it: the agents hold the record. Its clock is another."""
        self.now += 500.0
        self.settings = replace(self.settings, wall_s=self.settings.wall_s - 500.0)
        self.logic = ManagerLogic(self.settings)
        self.train(22)
        assert self.logic.job is not None
