"""Checkpoints of a job on several nodes that share a directory."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from several import Node, Nodes
from waiting import until

from onward.checkpoints import disk

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
SCRIPT = "tests/scripts/saves.py"


def train(nodes: Nodes, directory: Path, *more: str, steps: int = 30) -> list[str]:
    return [SCRIPT, "--steps", str(steps), "--dir", str(directory), "--digest", nodes.digest, *more]


def run_two(nodes: Nodes, script: list[str], *flags: str) -> list[Node]:
    both = [nodes.start(f"n{i}", "--node-rank", str(i), *flags, script=script) for i in range(2)]
    for node in both:
        assert node.wait() == 0, node.said
    return both


def same_as_on_one_node(jobs, nodes: Nodes) -> None:
    reference = jobs.reference(SCRIPT, "--steps", "30")
    digest = Path(__file__).parents[2] / "examples" / "digest.py"
    compare = [sys.executable, str(digest), reference.digest, nodes.digest]
    done = subprocess.run(compare, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def saved(directory: Path) -> list[int]:
    for folder in disk.folders(directory):
        manifest = disk.read_manifest(folder)
        disk.verify(folder, manifest)
        assert manifest.names() == {"shared.safetensors", *(disk.local_name(r) for r in range(4))}
    return sorted(disk.step_of(f.name) or -1 for f in disk.folders(directory))


@pytest.mark.nightly
def test_saved_by_two_nodes_and_resumed(make_nodes, jobs, tmp_path) -> None:
    run_two(first := make_nodes(), train(first, tmp_path / "ckpt", "--wait", "--every", "10", steps=22))
    assert saved(tmp_path / "ckpt") == [10, 20]
    second = make_nodes()
    both = run_two(second, train(second, tmp_path / "ckpt", "--every", "1000"))
    assert "resuming at step 20" in both[0].said
    same_as_on_one_node(jobs, second)


@pytest.mark.nightly
@pytest.mark.parametrize("rank", [0, 3])
def test_a_dump_by_two_nodes(make_nodes, jobs, tmp_path, rank: int) -> None:
    nodes = make_nodes()
    flags = ["--recover-strategy", "retry,dump", "--chaos", f"kind=kill,rank={rank},step=16,at=optimizer"]
    both = run_two(nodes, train(nodes, tmp_path / "ckpt", "--every", "1000"), *flags)
    assert [i["policy"] for i in both[0].outcome["incidents"]] == ["dump"]
    assert both[0].outcome["steps_lost"] == 0
    (step,) = saved(tmp_path / "ckpt")
    assert step in (16, 17)
    same_as_on_one_node(jobs, nodes)


def where(node: Node) -> list[str]:
    """Who comes after the manager has moved must be told where it is now."""
    moved = re.search(r"starting one at (\S+)", node.said)
    return ["--manager", moved.group(1)] if moved else []


@pytest.mark.nightly
@pytest.mark.parametrize("lost", [1, 0])
def test_a_dump_after_the_loss_of_a_node(make_nodes, jobs, tmp_path, lost: int) -> None:
    """Nobody takes its place in time. What its ranks knew is kept on the other node: no step is lost."""
    nodes = make_nodes()
    script = train(nodes, tmp_path / "ckpt", "--every", "1000", "--step-s", "0.05")
    flags = ["--recover-strategy", "retry,recover,dump", "--wait-reschedule-timeout", "1"]
    chaos = ["--chaos", f"kind=kill-agent,node={lost},step=16"]
    flags += ["--join-token", "a secret of the nodes of this test"]
    both = [nodes.start(f"n{i}", "--node-rank", str(i), *flags, *chaos, script=script) for i in range(2)]
    assert both[lost].wait() == -signal.SIGKILL, "the fault fired"
    left = both[1 - lost]
    until(lambda: bool(disk.folders(tmp_path / "ckpt")), "the dump")
    late = nodes.start("late", "--standby", *flags, *where(left), script=script)
    assert left.wait() == 0, left.said
    assert late.wait() == 0, late.said
    assert [i["policy"] for i in left.outcome["incidents"]] == ["dump"]
    assert left.outcome["steps_lost"] == 0
    assert len(saved(tmp_path / "ckpt")) == 1
    same_as_on_one_node(jobs, nodes)


@pytest.mark.nightly
def test_reload_on_two_nodes(make_nodes, jobs, tmp_path) -> None:
    nodes = make_nodes()
    flags = ["--recover-strategy", "retry,exit", "--chaos", "kind=double,rank=2+3,step=16"]
    both = run_two(nodes, train(nodes, tmp_path / "ckpt", "--every", "1000"), *flags)
    assert [i["policy"] for i in both[0].outcome["incidents"]] == ["reload"], "the ranks of node 1 are given the state"
    same_as_on_one_node(jobs, nodes)


@pytest.mark.nightly
def test_told_to_end_while_a_rank_is_killed(make_nodes, jobs, tmp_path) -> None:
    """The grace period of both nodes runs, and a rank is SIGKILLed: what the others hold is saved all the same."""
    first = make_nodes()
    script = train(first, tmp_path / "ckpt", "--every", "1000", "--step-s", "0.2")
    flags = ["--grace", "20", "--chaos", "kind=kill,rank=3,step=8"]
    both = [first.start(f"n{i}", "--node-rank", str(i), *flags, script=script) for i in range(2)]
    until(lambda: "rank 3" in both[0].events and "SIGKILL" in both[0].events, "the rank is dead")
    for node in both:
        node.process.send_signal(signal.SIGTERM)
    assert [n.wait(60) for n in both] == [128 + signal.SIGTERM] * 2, both[0].said + both[1].said
    (step,) = saved(tmp_path / "ckpt")
    assert step >= 8
    second = make_nodes()
    script = train(second, tmp_path / "ckpt", "--every", "1000")
    again = [second.start(f"again{i}", "--node-rank", str(i), script=script) for i in range(2)]
    assert [n.wait() for n in again] == [0, 0], again[0].said
    assert f"resuming at step {step}" in again[0].said
    same_as_on_one_node(jobs, second)
