"""The manager is killed after each record that it writes in each policy, with its journal and without.

It has told nobody of that record. The next manager has the journal and what the agents hold, or that alone, and the job
comes to the same end: no process is restarted that would not have been.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from onward.core.policy import Policy

from .cases import PLAIN, SEVERAL
from .scenario import Fault, Scenario
from .world import World

SEED = 7


def _job(*faults: Fault, **changes: Any) -> Scenario:
    return replace(PLAIN, faults=list(faults), **changes)


KILLED = Fault("kill", 1, "forward", 3)
SHRUNK: dict[str, Any] = {"world_size": 3, "nodes": 3, "steps": 40, "elastic": True, "min_nodes": 2, "save_every": 100}
NO_RETRY = (Policy.RECOVER_IN_PLACE, Policy.ELASTIC)
BROKEN_WHILE_SHRUNK = (Fault("kill-node", 2, "forward", 3, node=-1), Fault("raise-communication", 1, "forward", 20))
STORIES = {
    "retry": _job(Fault("raise-communication", 1, "forward", 3)),
    "recover-in-place": _job(KILLED),
    "recover": _job(Fault("kill-node", 1, "forward", 3, node=-1), **SEVERAL),
    "recover, of rank 0": _job(Fault("kill-node", 0, "forward", 3, node=-1), **SEVERAL),
    "dump": _job(KILLED, policies=(Policy.DUMP, Policy.EXIT), save_every=100),
    "dump, with fewer": _job(*BROKEN_WHILE_SHRUNK, policies=(*NO_RETRY, Policy.DUMP, Policy.EXIT), **SHRUNK),
    "reload, with fewer": _job(*BROKEN_WHILE_SHRUNK, policies=(*NO_RETRY, Policy.EXIT), **SHRUNK),
    "exit": _job(KILLED, policies=(Policy.EXIT,), save_every=2),
    "hot-switch": _job(Fault("sub-health", node=1, at=0.4), hot_switch=True, **SEVERAL | {"steps": 60}),
    "hot-switch, of rank 0": _job(Fault("sub-health", node=0, at=0.4), hot_switch=True, **SEVERAL | {"steps": 60}),
}


def told(name: str, *more: Fault) -> World:
    scenario = copy.deepcopy(STORIES[name])
    scenario.faults += more
    world = World(SEED, scenario=scenario)
    outcome = world.run()
    assert not outcome.broken, f"{'; '.join(map(str, more))}: {outcome.broken}"
    assert outcome.phase == "Succeeded"
    assert all(f.fired == 1 for f in scenario.faults), "every fault struck"
    return world


@pytest.mark.parametrize("name", STORIES)
def test_a_manager_that_dies_after_any_record(name: str) -> None:
    calm = told(name)
    assert calm.job is not None
    assert calm.job.last is not None
    assert calm.job.last.policy == name.partition(",")[0]
    assert calm.records > 4
    for record in range(1, calm.records + 1):
        for journal in ("kept", "lost"):
            job = told(name, Fault("manager-kill", record=record, journal=journal)).job
            assert job is not None
            assert (job.attempt, job.incarnations) == (calm.job.attempt, calm.job.incarnations), (record, journal)
            assert job.restarts_used == calm.job.restarts_used, (record, journal)
