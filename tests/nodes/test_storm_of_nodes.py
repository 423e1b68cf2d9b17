"""A storm: faults at random moments, on average every 15 s, in ranks and of whole nodes. The result is the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import psutil
import pytest
from several import ROOT, Node, Nodes
from waiting import until, within

pytestmark = [pytest.mark.torch, pytest.mark.nightly, pytest.mark.timeout(1500)]
SCRIPT, STEPS, PACE_S = "tests/scripts/paced.py", 2000, 0.05
MEAN_S = 15.0
KINDS = ("kill", "kill", "retry", "stop", "node")
WHERE = {"kill": range(4), "stop": range(4), "retry": range(2), "node": range(2, 4)}  # we talk to the first node
RETRYABLE = "kind=exception,rank={rank},text=[gloo] Connection closed by peer"


def process_of(started: list[Node], rank: int) -> tuple[Node, psutil.Process] | None:
    """Who fills the place of a rank, and on which node: by the log that it writes."""
    for node in started:
        if node.process.poll() is not None:
            continue
        for p in psutil.Process(node.pid).children(recursive=True):
            try:
                if Path(os.readlink(f"/proc/{p.pid}/fd/1")).name.startswith(f"rank{rank}."):
                    return node, p
            except (OSError, psutil.Error):
                continue
    return None


def strike(nodes: Nodes, kind: str, rank: int, stand_by) -> None:
    found = until(lambda: process_of(nodes.started, rank), f"rank {rank} is there", 60)
    node, p = found
    if kind == "node":
        node.kill()
        stand_by()
    elif kind == "retry":
        words = ["chaos", str(nodes.started[0].pid), RETRYABLE.format(rank=rank)]
        subprocess.run([sys.executable, "-m", "onward.cli.main", *words], capture_output=True, timeout=90, check=True)
    else:
        p.send_signal({"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[kind])


def top(tmp: Path) -> int:
    """The furthest step that rank 0 has said to count."""
    logs = tmp.glob("logs-*/*/rank0.*.stdout.log")
    found = [
        int(line.split()[1]) for log in logs for line in log.read_text().splitlines() if line.startswith("committed ")
    ]
    return max(found, default=-1)


def test_a_storm_with_nodes_changes_nothing(make_nodes, jobs, tmp_path: Path) -> None:
    nodes = make_nodes(nodes=2, nproc=2)
    script = [SCRIPT, "--steps", str(STEPS), "--pace", str(PACE_S), "--digest", nodes.digest]

    def stand_by() -> None:
        nodes.start(f"spare{len(nodes.started)}", "--standby", script=script)

    for i in (0, 1):
        nodes.start(f"n{i}", "--node-rank", str(i), script=script)
    stand_by()
    first = nodes.started[0]
    until(lambda: top(tmp_path) > 10, "it trains")
    draw, struck, begun, began_at = Random(3), [], time.monotonic(), top(tmp_path)
    kinds: list[str] = []

    def near_its_end() -> bool:
        assert first.process.poll() is None, first.said
        return top(tmp_path) >= STEPS - 400

    while not within(draw.expovariate(1 / MEAN_S), near_its_end):  # the next fault comes at a random moment
        kinds = kinds or draw.sample(KINDS, len(KINDS))  # each before any comes again
        kind = kinds.pop()
        rank = draw.choice(WHERE[kind])
        strike(nodes, kind, rank, stand_by)
        struck.append(kind)
    goodput = (top(tmp_path) - began_at) * PACE_S / (time.monotonic() - begun)
    lasting = [node for node in nodes.started if node.process.poll() != -signal.SIGKILL]
    for node in lasting:
        assert node.wait(600) == 0, node.said[-4000:]
    print(f"{struck}: {goodput:.0%} of the steps that sleeping alone would allow")
    assert set(struck) == set(KINDS), "every kind of fault fired"
    assert goodput > 0.05, "it went on all the time"
    assert first.outcome["steps_lost"] == 0
    policies = {i["policy"] for i in first.outcome["incidents"]}
    assert {"recover", "recover-in-place", "retry"} <= policies
    reference = jobs.reference(SCRIPT, "--steps", str(STEPS), "--pace", "0", nproc=4)
    compare = [sys.executable, str(ROOT / "examples" / "digest.py"), reference.digest, nodes.digest]
    done = subprocess.run(compare, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
