"""Everybody starts again while nodes are missing: with those who are there, and the others join when they come."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from several import Node, Nodes
from test_elastic import GLOBAL_BATCH, SCRIPT, ledger
from waiting import until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
LADDER = ["--recover-strategy", "recover-in-place,elastic-training,dump"]  # nobody is waited for
AT_ONCE = "kind=drop-connections,rank=0,step={step}"  # without `retry` this is not cured in place


def start(nodes: Nodes, least: int, size: int, saved: Path, steps: int, ladder: list[str], *kinds: str) -> list[Node]:
    nodes.flags[nodes.flags.index("--nnodes") + 1] = f"{least}:{size}"
    script = [SCRIPT, "--steps", str(steps), "--dir", str(saved), "--digest", nodes.digest]
    faults = [f for kind in kinds for f in ("--chaos", kind)]
    return [nodes.start(f"n{i}", "--node-rank", str(i), *ladder, *faults, script=script) for i in range(size)]


def check_ledger(tmp: Path, steps: int) -> None:
    counted = ledger(tmp)
    assert sorted(counted) == list(range(steps))
    for step, ids in counted.items():
        assert len(ids) == len(set(ids)) == GLOBAL_BATCH, f"step {step}: {sorted(ids)}"


def test_a_dump_while_a_node_is_missing_goes_on_with_the_others(make_nodes, tmp_path: Path) -> None:
    nodes = make_nodes(nodes=4, nproc=1)
    kinds = ("kind=kill-agent,node=3,step=15", AT_ONCE.format(step=40))
    started = start(nodes, 2, 4, tmp_path / "saved", 120, LADDER, *kinds)
    first = started[0]
    assert started[3].wait() == -signal.SIGKILL
    until(lambda: "restarting the 3 ranks that are here" in first.said + first.events, "they start again")
    script = [SCRIPT, "--steps", "120", "--dir", str(tmp_path / "saved"), "--digest", nodes.digest]
    back = nodes.start("back", "--standby", *LADDER, script=script)
    for node in [*started[:3], back]:
        assert node.wait() == 0, node.said[-4000:]
    assert [i["policy"] for i in first.outcome["incidents"]] == ["elastic-training", "dump", "elastic-training"]
    assert len(first.pids(0)) == 2
    check_ledger(tmp_path, 120)
