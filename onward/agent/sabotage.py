"""The injected faults that are the launcher's to carry out: those of its helpers, and deaths during a recovery."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from onward.agent.chaos import OWN_KINDS
from onward.agent.crew import Crew
from onward.agent.logic import AgentLogic
from onward.agent.witness import Witness
from onward.wire.messages import DieAfter, Injection


class Sabotage:
    """`manager_pid`: of the manager that we host; `tell_manager`: sends it a message."""

    def __init__(
        self,
        logic: AgentLogic,
        crew: Crew,
        witness: Witness,
        manager_pid: Callable[[], int],
        tell_manager: Callable[[object], object],
    ) -> None:
        self._logic, self._crew, self._witness = logic, crew, witness
        self._manager_pid, self._tell_manager = manager_pid, tell_manager

    def look(self, step: int, recovering: bool) -> None:
        """Carry out what is due. `step`: the furthest of the ranks here."""
        for i in list(self._logic.injections):
            if i.at == "recovery" and (not recovering or step < i.step):
                continue
            if i.at == "recovery" and i.kind not in OWN_KINDS:
                if i.rank >= 0:
                    self._logic.injections.remove(i)
                    self._crew.signal_rank(i.rank, signal.SIGKILL, i.id)
            elif i.kind in OWN_KINDS and step >= i.step and i.node == self._logic.node:
                self._carry_out(i)

    def _carry_out(self, i: Injection) -> None:
        pids = self._pids(i.kind)
        if pids:
            self._logic.injections.remove(i)
            self._witness.announced(i.id, pids[0])
        if i.appends:
            self._tell_manager(DieAfter(appends=i.appends, lose_journal=bool(i.lose)))
            return
        for pid in pids:
            if pid == os.getpid() == 1:
                os._exit(128 + signal.SIGKILL)  # nobody inside can kill process 1 of a container; all end with it
            os.kill(pid, signal.SIGKILL)

    def _pids(self, kind: str) -> list[int]:
        match kind:
            case "kill-manager":
                pid = self._manager_pid()
                return [pid] if pid else []  # none here at the moment: it waits for one
            case "kill-agent":
                return [os.getpid()]
            case "kill-warm-parent":
                return [self._crew.warm_pid] if self._crew.warm_pid else []
            case _:
                return [p.pid for p in self._logic.processes.values() if p.spare and p.alive and p.pid]
