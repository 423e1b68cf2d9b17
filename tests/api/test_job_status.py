"""Conditions: one state after the other, and that the last one is always one of the five."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from onward.api import status
from onward.api.status import Condition

STATES = {name: Condition(name, f"{name}Reason", name) for name in status.STATES}
RECOVERING = Condition("Recovering", "recover-in-place", "rank 1 died")


def told(*names: str) -> list[dict[str, Any]]:
    conditions: list[dict[str, Any]] = []
    for at, name in enumerate(names):
        conditions = status.update(conditions, STATES[name], (), f"t{at}")
    return conditions


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["Created"], [("Created", "True")]),
        (["Created", "Running"], [("Created", "True"), ("Running", "True")]),
        (["Created", "Running", "Restarting"], [("Created", "True"), ("Restarting", "True")]),
        (["Created", "Running", "Restarting", "Running"], [("Created", "True"), ("Running", "True")]),
        (["Created", "Running", "Succeeded"], [("Created", "True"), ("Running", "False"), ("Succeeded", "True")]),
        (["Created", "Running", "Failed"], [("Created", "True"), ("Running", "False"), ("Failed", "True")]),
        (["Created", "Restarting", "Failed"], [("Created", "True"), ("Restarting", "True"), ("Failed", "True")]),
        (["Failed", "Running"], [("Failed", "True")]),  # it is final
        (["Running", "Succeeded", "Failed"], [("Running", "False"), ("Succeeded", "True")]),
        (["Created", "Running", "Created"], [("Running", "False"), ("Created", "True")]),  # suspended
    ],
)
def test_one_state_after_the_other(names: list[str], expected: list[tuple[str, str]]) -> None:
    assert [(c["type"], c["status"]) for c in told(*names)] == expected


def test_the_last_condition_is_a_state_whatever_happens() -> None:
    for names in itertools.product(status.STATES, repeat=3):
        conditions: list[dict[str, Any]] = []
        for name in names:
            conditions = status.update(conditions, STATES[name], [RECOVERING], "t")
            conditions = status.update(conditions, None, [Condition("Degraded", "r", "m", "False")], "t")
            types = [c["type"] for c in conditions]
            assert types[-1] in status.STATES
            assert len(set(types)) == len(types)
            assert status.state(conditions) == types[-1]


def test_times() -> None:
    first = status.update([], Condition("Created", "a", "m"), (), "1")
    same = status.update(first, Condition("Created", "a", "m"), (), "2")
    assert same == first
    other = status.update(first, Condition("Created", "b", "m"), (), "3")[0]
    assert (other["lastTransitionTime"], other["lastUpdateTime"]) == ("1", "3")
    off = status.update(first, Condition("Running", "r", "m"), (), "4")
    done = status.update(off, Condition("Succeeded", "s", "m"), (), "5")
    assert [(c["type"], c["lastTransitionTime"]) for c in done] == [
        ("Created", "1"),
        ("Running", "5"),
        ("Succeeded", "5"),
    ]
