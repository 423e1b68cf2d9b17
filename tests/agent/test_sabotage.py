"""Faults in onward's own processes: only what is there is killed."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from onward.agent.sabotage import Sabotage
from onward.wire.messages import Injection


def test_a_manager_that_is_not_there_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pid is 0 then, and to kill that is to kill our whole process group."""
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, sign: killed.append((pid, sign)))
    due = Injection(id=1, kind="kill-manager", rank=-1, node=0, step=3)
    logic: Any = SimpleNamespace(injections=[due], node=0)
    witness: Any = SimpleNamespace(announced=lambda number, pid: None)
    pids = [0]
    sabotage = Sabotage(logic, SimpleNamespace(), witness, lambda: pids[0], lambda message: None)  # type: ignore[arg-type]
    sabotage.look(5, recovering=False)
    assert (killed, logic.injections) == ([], [due])
    pids[0] = 4711
    sabotage.look(6, recovering=False)
    assert (killed, logic.injections) == ([(4711, signal.SIGKILL)], [])
