"""A link is cut and nobody is told: who has the majority goes on, who has not does nothing, and comes back in order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from several import Nodes
from waiting import until
from wires import Wires, needs_namespaces

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300), needs_namespaces]
SCRIPT = "tests/scripts/paced.py"
TOKEN = "a secret of the nodes of this test"


@pytest.fixture
def wires():
    made = Wires(4)
    yield made
    made.remove()


def start(nodes: Nodes, wires: Wires, host: int, *flags: str):
    nodes.address, nodes.port = wires.address(0), 29500
    meet = ["--join-token", TOKEN, "--node-timeout", "2", "--local-addr", wires.address(host), *flags]
    script = [SCRIPT, "--steps", "150", "--digest", nodes.digest]
    return nodes.start(f"host{host}", *meet, script=script, prefix=wires.on(host))


def steps_shown(node) -> int:
    """The script prints every committed step of rank 0 and of the last rank."""
    return node.said.count("committed")


def same_as_without(jobs, nodes: Nodes, nproc: int) -> None:
    reference = jobs.reference(SCRIPT, "--steps", "150", nproc=nproc)
    digest = Path(__file__).parents[2] / "examples" / "digest.py"
    compare = [sys.executable, str(digest), reference.digest, nodes.digest]
    done = subprocess.run(compare, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
def test_the_stale_side_commits_nothing_and_comes_back_as_a_standby(make_nodes, wires, jobs) -> None:
    nodes = make_nodes(nodes=3, nproc=1)
    first, second = (start(nodes, wires, i, "--node-rank", str(i)) for i in (0, 1))
    third = start(nodes, wires, 2, "--node-rank", "2")
    spare = start(nodes, wires, 3, "--standby")
    until(lambda: steps_shown(third) > 20, "it trains")
    wires.cut(2)
    until(lambda: "takes the place of node 2" in first.said, "the others go on without it")
    before = steps_shown(third)
    until(lambda: steps_shown(spare) > 10, "the replacement trains")
    assert third.process.poll() is None, "its agent is alive behind the cut"
    assert steps_shown(third) == before, "and commits nothing"
    wires.mend(2)
    assert [n.wait() for n in (first, second, spare)] == [0, 0, 0], first.said + spare.said
    assert third.wait(30) == 0, third.said
    assert "node 2 is not ours any more" in third.events
    assert [i["policy"] for i in first.outcome["incidents"]] == ["recover"]
    assert len(first.pids(0)) == len(second.pids(1)) == 1
    same_as_without(jobs, nodes, 3)


@pytest.mark.nightly
def test_half_of_two_without_the_manager_has_no_quorum_and_rejoins(make_nodes, wires, jobs) -> None:
    nodes = make_nodes(nodes=2, nproc=1)
    first = start(nodes, wires, 0, "--node-rank", "0")
    second = start(nodes, wires, 1, "--node-rank", "1")
    until(lambda: steps_shown(second) > 20, "it trains")
    wires.cut(1)
    until(lambda: "lost with node 1" in first.said, "the loss is noticed")
    until(lambda: "NoQuorum" in second.said, "the other half knows that it may not go on alone")
    before = steps_shown(second)
    wires.mend(1)
    assert [first.wait(), second.wait()] == [0, 0], first.said + second.said
    assert steps_shown(second) > before
    assert len(first.pids(0)) == 1, "its process waited"
    same_as_without(jobs, nodes, 2)


@pytest.mark.nightly
def test_the_manager_is_cut_off_and_ranks_train_on_under_another(make_nodes, wires, jobs, tmp_path) -> None:
    """It is alive behind the cut: there are two of them, of which one acts and the other steps down."""
    nodes = make_nodes(nodes=2, nproc=1)
    where = f"{wires.address(3)}:29500"
    words = ["manager", "--listen", where, "--nodes", "2", "--node-timeout", "2", "--join-token", TOKEN]
    with (tmp_path / "manager.err").open("wb") as err:
        command = [*wires.on(3), sys.executable, "-m", "onward.cli.main", *words]
        manager = subprocess.Popen(command, stderr=err, cwd=Path(__file__).parents[2])
    try:
        flags = ("--manager", where, "--chaos", "kind=kill,rank=1,step=110")
        first, second = (start(nodes, wires, i, "--node-rank", str(i), *flags) for i in (0, 1))
        until(lambda: steps_shown(second) > 20, "it trains")
        wires.cut(3)
        until(lambda: "somebody looks for a manager here" in first.said + second.said, "another is started")
        assert manager.wait(60) == 1
        wires.mend(3)
        assert [first.wait(), second.wait()] == [0, 0], first.said + second.said
    finally:
        manager.kill()
        manager.wait()
    assert "stepped down: no majority of the nodes follows it any more" in (tmp_path / "manager.err").read_text()
    assert [i["policy"] for i in first.outcome["incidents"]] == ["recover-in-place"], "the kill, and nothing but that"
    assert [len(first.pids(0)), len(second.pids(1))] == [1, 2]
    assert first.outcome["steps_lost"] == 0
    same_as_without(jobs, nodes, 2)


@pytest.mark.nightly
def test_ranks_that_cannot_reach_one_another_are_not_started_for_ever(make_nodes, wires, monkeypatch) -> None:
    """Each is told to connect over its own loopback, where nobody else can call it."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    nodes = make_nodes(nodes=2, nproc=1)
    both = [start(nodes, wires, i, "--node-rank", str(i)) for i in (0, 1)]
    for node in both:
        assert node.wait() != 0
        assert "the ranks have not reached one another in 10 starts" in node.said
