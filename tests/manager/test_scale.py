"""The bench of the control plane works: with a handful of its agents."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "control_plane.py"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("control_plane", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "control_plane", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "IDLE_S", 0.1)
    monkeypatch.setattr(module, "LIMIT_S", 60.0)
    return module


@pytest.mark.timeout(120)
def test_a_death_interrupts_all_and_they_are_formed_anew(bench: Any) -> None:
    found = bench.measure(5, min(os.sched_getaffinity(0)))
    assert found["agents"] == 5
    assert found["generation"] > 1, "what is called formed anew is not the generation from before"
    assert 0 < found["interrupted_p50_s"] <= found["interrupted_p99_s"] < found["again_s"]
