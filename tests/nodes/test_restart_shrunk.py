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
AT_ONCE = "kind=drop-connections,rank={rank},step={step}"  # without `retry` this is not cured in place


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


def short_start(nodes: Nodes, tmp: Path, lost: int, *more: str, ladder: list[str] = LADDER) -> list[Node]:
    """Four nodes, three, a dump, the same three, and four again. Returns those who stayed."""
    saved, steps = tmp / "saved", 100
    kinds = (f"kind=kill-agent,node={lost},step=15", AT_ONCE.format(rank=(lost + 1) % 4, step=40), *more)
    started = start(nodes, 2, 4, saved, steps, ladder, *kinds)
    stay = [n for n in started if n is not started[lost]]
    assert started[lost].wait() == -signal.SIGKILL
    until(lambda: any("restarting the 3 ranks that are here" in n.events for n in stay), "they start again")
    script = [SCRIPT, "--steps", str(steps), "--dir", str(saved), "--digest", nodes.digest]
    back = nodes.start("back", "--standby", *ladder, script=script)
    for node in [*stay, back]:
        assert node.wait() == 0, node.said[-4000:]
    incidents = stay[0].outcome["incidents"]
    assert [i["policy"] for i in incidents] == ["elastic-training", "dump", "elastic-training"]
    assert f"rank {lost} joins again" in incidents[-1]["headline"]
    assert "came; forming" in stay[0].events + stay[1].events
    assert sum(n.outcome["steps_lost"] for n in stay) == 0
    assert len(back.pids(lost)) == 1
    check_ledger(tmp, steps)
    return stay


def test_a_dump_while_a_node_is_missing_goes_on_with_the_others(make_nodes, tmp_path: Path) -> None:
    stay = short_start(make_nodes(nodes=4, nproc=1), tmp_path, 3)
    assert [len(node.pids(rank)) for rank, node in enumerate(stay)] == [2, 2, 2]
