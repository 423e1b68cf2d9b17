"""What is kept of a run for people: its steps and time, its incidents, its dead, and the faults caused on purpose."""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import replace
from pathlib import Path

import msgspec

from onward.agent import evidence
from onward.agent.conditions import Conditions
from onward.agent.gauges import Gauges
from onward.agent.logic import AgentLogic
from onward.agent.logs import tail
from onward.agent.obituary import Obituaries
from onward.agent.observer import JobView, Observer, Outcome, RankView
from onward.agent.tally import Tally
from onward.agent.witness import Witness
from onward.core.facts import FaultReport
from onward.core.incident import Incident
from onward.wire.messages import CaptureStacks, Injection, Orders, Times


class Ledger:
    """Answers how the job stands (`view`), and in the end how it went (`outcome`)."""

    def __init__(
        self, name: str, log_dir: Path, started_at: float, logic: AgentLogic, observer: Observer, witness: Witness
    ) -> None:
        self.name, self.log_dir = name, log_dir
        self.gauges = Gauges()
        self.conditions = Conditions()
        self.obituaries = Obituaries()
        self.open_incident: Incident | None = None
        self._logic, self._observer, self._witness = logic, observer, witness
        self._tally = Tally()
        self._incidents: list[Incident] = []
        self._evidence: dict[tuple[int, int], str] = {}  # (rank, incarnation) -> its stacks
        self._loss: float | None = None
        self._started_at = started_at
        self._began_in = -1  # the generation that began with nothing loaded
        self._lost_before = 0  # steps, when the incident that is open began

    # ------------------------------------------------------------------------------------------ what happens

    def on_orders(self, orders: Orders) -> None:
        for order in orders.ranks:
            if order.form is None or order.generation != orders.generation:
                continue
            if order.want == "form":
                self._tally.agreed(order.form.step)
            elif order.form.begin and self._began_in != orders.generation:
                self._began_in = orders.generation
                self._tally.agreed(0)

    def on_incident(self, incident: Incident, is_open: bool) -> None:
        if any(i.number == incident.number for i in self._incidents):
            return  # a new manager tells the latest once more
        self._witness.faulted(incident.faults)
        who = [(f.rank, f.incarnation) for f in incident.faults]
        seen = [self._evidence[key] for key in dict.fromkeys(who) if key in self._evidence]
        if seen:
            incident = replace(incident, evidence="\n".join(seen))
        if self.open_incident is None:
            self._lost_before = self._tally.lost
        self.open_incident = incident if is_open else None
        self.count()
        if not is_open:
            if self._logic.attached:
                incident = replace(incident, lost=self._tally.lost - self._lost_before)
            self._incidents.append(incident)
            noticed_ms = dict(incident.timeline_ms()).get("detect", 0.0)
            self._tally.closed(incident.total_ms / 1000.0, time.monotonic(), noticed_ms / 1000.0)
            with contextlib.suppress(OSError), open(self.log_dir / "incidents.jsonl", "ab") as f:
                f.write(msgspec.json.encode(incident) + b"\n")
        self._observer.incident(incident, is_open)

    async def capture(self, want: CaptureStacks) -> None:
        """Look at the stacks of a rank that holds the others up, while it still has some."""
        number = self._logic.current.get(want.rank)
        p = self._logic.processes.get(number) if number is not None else None
        if p is None or p.incarnation != want.incarnation or not p.pid:
            return
        text = await evidence.stacks(p.pid)
        self._evidence[(want.rank, want.incarnation)] = text
        path = self.log_dir / f"rank{want.rank}.{p.number:03d}.stacks.txt"
        with contextlib.suppress(OSError):
            path.write_text(text)

    def count(self) -> None:
        """Steps and processes of the ranks, as of now."""
        steps = []
        for rank, number in self._logic.current.items():
            p = self._logic.processes[number]
            if p.alive:
                self.gauges.read(p)
            steps.append(p.progress.step)
            self.obituaries.alive(rank, p.pid)
        if len(steps) == self._logic.settings.local_ranks:
            self._tally.see(steps, self.open_incident is not None, time.monotonic())

    # ------------------------------------------------------------------------------------------ what people ask

    def stories(self) -> tuple[list[Incident], bool]:
        """The incidents so far, and whether the last of them is still open."""
        now_open = [self.open_incident] if self.open_incident is not None else []
        return self._incidents + now_open, bool(now_open)

    def times(self) -> Times:
        return self._tally.times(time.monotonic())

    def view(self) -> JobView:
        """The job as it stands."""
        logic = self._logic
        now = time.monotonic()
        spares = {p.rank: p.pid for p in logic.processes.values() if p.spare and p.parked}
        ranks = []
        step_s = own_ms = 0.0
        for rank, number in sorted(logic.current.items()):
            p = logic.processes[number]
            began = "starting" if p.attached or not p.pid else "script"
            stage = "exited" if not p.alive else (p.report.stage if p.report else began)
            shown, spare = p.progress, spares.get(rank, 0)
            ranks.append(RankView(rank, p.pid, p.incarnation, stage, shown.step, spare, shown.compute_s))
            page = self.gauges.page(number)
            if page is not None:
                step_s = max(step_s, p.progress.step_s)
                own_ms = max(own_ms, page.get("own_ns") / 1e6)
                if page.get("loss_set") and rank == min(logic.current):
                    self._loss = page.get_float("loss_bits")
        orders = logic.orders
        return JobView(
            phase=orders.phase if orders else "Starting",
            generation=orders.generation if orders else 0,
            step=self._tally.step,
            total_steps=self.gauges.total_steps,
            loss=self._loss,
            step_s=step_s,
            own_ms=own_ms,
            ranks=tuple(ranks),
            incidents=len(self._incidents) + (self.open_incident is not None),
            restarts=orders.attempt if orders else 0,
            library=logic.attached,
            elapsed_s=now - self._started_at,
            name=self.name,
            log_dir=str(self.log_dir),
            steps_lost=self._tally.lost,
            goodput=self._tally.times(now).goodput,
            conditions=self.conditions.now,
        )

    def unseen(self) -> list[str]:
        """Faults that were to be caused here and were not."""
        return self._witness.unseen(self._is_ours)

    def _is_ours(self, i: Injection) -> bool:
        """Every node is given the same faults; each causes those of its own ranks and processes."""
        return i.rank in self._logic.local_ranks if i.rank >= 0 else i.node == self._logic.node

    def outcome(self, view: JobView, exit_code: int, phase: str, reason: str, root: FaultReport | None) -> Outcome:
        """How the job went, given how it ended. `view`: the last one."""
        orders = self._logic.orders
        root = self.obituaries.cause(root)
        ended = self.obituaries.of(root)
        return Outcome(
            exit_code=exit_code,
            phase=phase,
            reason=reason,
            root_cause=root,
            incidents=self._incidents,
            steps=view.step,
            steps_lost=view.steps_lost,
            goodput=view.goodput,
            elapsed_s=view.elapsed_s,
            loss=view.loss,
            name=self.name,
            log_dir=view.log_dir,
            host=socket.gethostname(),
            root_process=ended,
            root_log=(tail(Path(ended.err), 200) or tail(Path(ended.out), 30)) if ended is not None else (),
            others=self.obituaries.others(ended),
            pids={rank: tuple(pids) for rank, pids in sorted(self.obituaries.pids.items())},
            chaos=self._witness.fired,
            attempts=orders.attempt + 1 if orders is not None else 0,
            conditions=[*self.conditions.over, *self.conditions.now],
            dropped=self._logic.dropped,
        )
