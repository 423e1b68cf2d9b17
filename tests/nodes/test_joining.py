"""Nodes that do not come, or are not let in: said, and not waited for in silence."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from several import Nodes
from waiting import until

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ["tests/scripts/paced.py", "--steps", "10"]


def test_a_job_whose_nodes_do_not_come_ends_with_a_reason(make_nodes) -> None:
    nodes: Nodes = make_nodes(nodes=2, nproc=1)
    alone = nodes.start("n0", "--node-rank", "0", "--join-timeout", "3", script=SCRIPT)
    assert alone.wait(60) == 1, alone.said
    assert "did not begin within 3 s (--join-timeout); it waited for 1 of 2 nodes" in alone.outcome["reason"]


def test_a_node_that_comes_first_says_whom_it_waits_for(make_nodes) -> None:
    nodes: Nodes = make_nodes(nodes=2, nproc=1)
    alone = nodes.start("spare", "--standby", "--no-warm", "--join-timeout", "6", script=SCRIPT)
    nobody = f"nobody answers at {nodes.address}:{nodes.port}"
    assert alone.wait(60) == 1, alone.said
    assert f"{nobody}, where the job's nodes are to meet; waiting for its first node, 6 s at most" in alone.said
    assert nobody in alone.outcome["reason"]


def test_a_node_that_starts_the_manager_itself_does_not_miss_it(tmp_path: Path) -> None:
    """However slow the machine is."""
    script = tmp_path / "plain.py"
    script.write_text("print('it ran')\n")
    at_once = "from onward.agent import launcher; launcher.UNANSWERED_S = -1.0; "
    command = [sys.executable, "-c", f"{at_once}from onward.__main__ import main; main()", "run", "--no-warm"]
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=120, check=True, cwd=ROOT)
    assert "it ran" in done.stdout + done.stderr
    assert "nobody answers" not in done.stdout + done.stderr


@pytest.mark.nightly
def test_a_node_with_another_token_is_told_that_it_is_not_let_in(make_nodes) -> None:
    nodes: Nodes = make_nodes(nodes=2, nproc=1)
    nodes.start("n0", "--node-rank", "0", "--join-token", "one secret of sixteen", script=SCRIPT)
    flags = ["--node-rank", "1", "--join-token", "another secret of it", "--join-timeout", "20"]
    stranger = nodes.start("n1", *flags, script=SCRIPT)
    until(lambda: "does not let us in" in stranger.said, "it is said")
    assert stranger.wait(60) == 1


def test_a_node_of_another_job_is_refused_and_both_sides_say_what_differs(make_nodes) -> None:
    nodes: Nodes = make_nodes(nodes=2, nproc=1)
    first = nodes.start("n0", "--node-rank", "0", "--no-warm", "--rdzv-id", "alpha", script=SCRIPT)
    flags = ["--nnodes", "3", "--nproc-per-node", "2", "--job-name", "beta", "--no-warm", "-o", "text"]
    stranger = nodes.start("n1", "--node-rank", "1", *flags, script=SCRIPT)
    assert stranger.wait(60) == 2, stranger.said
    differ = (
        "it wants to join the job 'beta', this one is 'alpha' (--job-name, or --rdzv-id); "
        "it was told of 3 nodes, the job has 2 (--nnodes); it has 2 ranks a node, the job has 1 (--nproc-per-node)"
    )
    assert f"Given up   : the job's manager has refused this node: {differ}" in stranger.said
    until(lambda: "refused node" in first.said, "the first node hears of it")
    assert differ in first.said
    assert first.process.poll() is None, "it goes on waiting for the right one"


@pytest.mark.torch
@pytest.mark.nightly
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_manager_that_is_stopped_is_replaced(make_nodes, nodes: int) -> None:
    """By a new one on its node, whether or not there are others who could take over."""
    made: Nodes = make_nodes(nodes=nodes, nproc=2 // nodes)
    script = ["tests/scripts/paced.py", "--steps", "700", "--pace", "0.05"]
    fault = ["--chaos", "kind=kill,rank=1,step=150"]
    all_nodes = [made.start(f"n{i}", "--node-rank", str(i), *fault, script=script) for i in range(nodes)]
    first = all_nodes[0]
    until(lambda: first.said.count("committed") > 20, "it trains")
    manager = next(p for p in psutil.Process(first.pid).children() if "onward.manager" in " ".join(p.cmdline()))
    manager.send_signal(signal.SIGSTOP)
    assert [n.wait() for n in all_nodes] == [0] * nodes, first.said
    assert [i["policy"] for i in first.outcome["incidents"]] == ["recover-in-place"]
    assert "the manager has been stopped for" in first.said
