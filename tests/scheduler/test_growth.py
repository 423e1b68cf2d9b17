"""How much there is to do grows as the cluster does. Calls of functions are counted: what else runs does not matter."""

from __future__ import annotations

import cProfile
import pstats
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
SMALL, TIMES = 60, 8
ROWS: dict[str, dict[str, bool]] = {
    "one_gang": {},
    "many_gangs": {},
    "many_gangs on hosts": {"host": True},
    "one_change": {},
}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    import scheduling

    yield scheduling
    del sys.modules["scheduling"]


def calls(work: Callable[..., object], size: int, **how: bool) -> int:
    counted = cProfile.Profile()
    counted.runcall(work, size, **how)
    total: int = pstats.Stats(counted, stream=StringIO()).total_calls  # type: ignore[attr-defined]
    return total


@pytest.mark.parametrize("row", ROWS)
def test_decisions_grow_as_the_cluster_does(bench: Any, row: str) -> None:
    """A tree that is one level deeper for twice the nodes is allowed for; looking at each node for each pod is not."""
    work = getattr(bench, row.split()[0])
    few, many = (calls(work, size, **ROWS[row]) for size in (SMALL, SMALL * TIMES))
    assert many / few < 1.5 * TIMES, f"{few} calls, {many} for {TIMES} times as much"
