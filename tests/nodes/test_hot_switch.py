"""A node that is worse than it should be is replaced while it trains; if that fails, training was never disturbed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from several import ROOT, Node, Nodes
from waiting import until

from onward.core.words import ranks_named

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
SCRIPT = "tests/scripts/paced.py"
RICH = "tests/scripts/followed.py"  # whatever a process must get right to follow another


def start(nodes: Nodes, name: str, *flags: str, steps: int = 200, script: tuple[str, ...] = (SCRIPT,)) -> Node:
    words = [*script, "--steps", str(steps), "--pace", "0.05", "--digest", nodes.digest]
    return nodes.start(name, "--sub-healthy-strategy", "hotSwitch", *flags, script=words)


def report(node: Node, which: int) -> None:
    """Somebody says that node `which` is not what it should be."""
    words = ["fault", "report", "--node", str(which), "--level", "sub-health", "--code", "xid-63", str(node.pid)]
    subprocess.run([sys.executable, "-m", "onward.cli.main", *words], check=True, capture_output=True, timeout=60)


def same_as_without(jobs, nodes: Nodes, steps: int, script: tuple[str, ...] = (SCRIPT,), ranks: int = 2) -> None:
    reference = jobs.reference(*script, "--steps", str(steps), "--pace", "0", nproc=ranks)
    compare = [sys.executable, str(ROOT / "examples" / "digest.py"), reference.digest, nodes.digest]
    done = subprocess.run(compare, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def committed(path: Path, rank: int) -> list[int]:
    """The steps of a rank that counted, in the order in which it said so, on whichever node it was."""
    logs = sorted(path.glob(f"logs-*/*/rank{rank}.*.stdout.log"), key=lambda log: log.stat().st_mtime)
    lines = [line for log in logs for line in log.read_text().splitlines() if line.startswith("committed")]
    return [int(line.split()[1]) for line in lines]


@pytest.mark.nightly
@pytest.mark.parametrize(("sick", "script", "nproc"), [(0, RICH, 1), (1, SCRIPT, 1), (0, SCRIPT, 2), (1, RICH, 2)])
def test_a_stand_in_that_has_followed_takes_over_any_node(
    make_nodes, jobs, tmp_path: Path, sick: int, script: str, nproc: int
) -> None:
    nodes = make_nodes(nodes=2, nproc=nproc)
    both = [start(nodes, f"n{i}", "--node-rank", str(i), script=(script,)) for i in (0, 1)]
    spare = start(nodes, "spare", "--standby", script=(script,))
    until(lambda: both[0].said.count("committed") > 10, "it trains")
    report(both[0], sick)
    for node in (*both, spare):
        assert node.wait() == 0, node.said
    well = both[1 - sick]
    moved, kept = (range(nproc * node, nproc * (node + 1)) for node in (sick, 1 - sick))
    assert [i["policy"] for i in well.outcome["incidents"]] == ["hot-switch"]
    assert "xid-63" in well.outcome["incidents"][0]["headline"]
    assert [len(well.pids(rank)) for rank in kept] == [1] * nproc, "the other ranks keep their processes"
    assert all(spare.pids(rank) for rank in moved), "the stand-in holds the ranks at the end"
    assert f"follows {ranks_named(moved)}, and is ready" in well.events
    assert "state for rank" not in well.events, "nothing was left to be moved"
    assert "the new group is connected already" in well.events
    for rank in range(2 * nproc):
        assert committed(tmp_path, rank) == list(range(200)), "each step counted once, first here and then there"
    same_as_without(jobs, nodes, 200, (script,), ranks=2 * nproc)


def switched_while(
    make_nodes, *words: str, steps: int = 150, nproc: int = 1, then: Callable[[Node], None] = lambda node: None
):
    """Node 1 is sick, and a stand-in begins to follow its ranks; the script knows what happens then."""
    nodes = make_nodes(nodes=2, nproc=nproc)
    script = (RICH, "--mark", f"{nodes.digest}.mark", *words)
    both = [start(nodes, f"n{i}", "--node-rank", str(i), steps=steps, script=script) for i in (0, 1)]
    spare = start(nodes, "spare", "--standby", steps=steps, script=script)
    until(lambda: both[0].said.count("committed") > 10, "it trains")
    report(both[0], 1)
    until(Path(f"{nodes.digest}.mark").exists, "somebody follows")
    then(both[0])
    for node in (*both, spare):
        assert node.wait() == 0, node.said
    return nodes, both, spare


@pytest.mark.nightly
@pytest.mark.parametrize("nproc", [1, 2])
def test_one_that_dies_while_it_follows_is_forgotten_and_nobody_noticed(make_nodes, jobs, nproc: int) -> None:
    nodes, both, _ = switched_while(make_nodes, "--then", "follower-dies", nproc=nproc)
    assert "ended before it was ready; the switch is undone" in both[0].events
    assert both[0].outcome["incidents"] == []
    assert all(len(both[rank // nproc].pids(rank)) == 1 for rank in range(2 * nproc))
    same_as_without(jobs, nodes, 150, (RICH,), ranks=2 * nproc)


@pytest.mark.nightly
def test_the_rank_that_is_followed_dies_and_that_comes_first(make_nodes, jobs) -> None:
    nodes, both, spare = switched_while(make_nodes, "--then", "followed-dies")
    assert [i["policy"] for i in both[0].outcome["incidents"]] == ["recover-in-place", "hot-switch"]
    assert len(both[0].pids(0)) == 1
    assert spare.pids(1), "the switch is made later"
    same_as_without(jobs, nodes, 150, (RICH,))


@pytest.mark.nightly
def test_the_manager_is_killed_while_a_stand_in_follows(make_nodes, jobs) -> None:
    nodes, both, spare = switched_while(make_nodes, then=kill_manager)
    assert [i["policy"] for i in both[0].outcome["incidents"]] == ["hot-switch"]
    assert "follows rank 1, and is ready" in both[0].events
    assert spare.pids(1)
    same_as_without(jobs, nodes, 150, (RICH,))


@pytest.mark.nightly
def test_a_script_that_cannot_be_followed_is_given_the_state_at_the_swap(make_nodes) -> None:
    _, both, spare = switched_while(make_nodes, "--outside")
    assert [i["policy"] for i in both[0].outcome["incidents"]] == ["hot-switch"]
    assert "state for rank 1 from rank 0" in both[0].events
    assert spare.pids(1)


def kill_manager(host: Node) -> None:
    found = [p for p in psutil.Process(host.pid).children(recursive=True) if "onward.manager" in " ".join(p.cmdline())]
    assert found, "the manager lives on the first node"
    found[0].kill()


@pytest.mark.nightly
def test_a_stand_in_that_fails_is_forgotten_and_nobody_noticed(make_nodes, jobs) -> None:
    nodes = make_nodes(nodes=2, nproc=1)
    both = [start(nodes, f"n{i}", "--node-rank", str(i), steps=150) for i in (0, 1)]
    until(lambda: both[0].said.count("committed") > 10, "it trains")
    report(both[0], 1)
    spare = start(nodes, "spare", "--standby", steps=150)
    until(lambda: "prepares to stand in for node 1" in both[0].events, "the switch has begun")
    spare.kill()
    for node in both:
        assert node.wait() == 0, node.said
    assert "the switch is undone" in both[0].events
    assert both[0].outcome["incidents"] == []
    assert len(both[0].pids(0)) == len(both[1].pids(1)) == 1
    same_as_without(jobs, nodes, 150)


@pytest.mark.nightly
def test_a_node_whose_rank_is_slow_is_replaced_without_anybody_reporting_it(make_nodes, jobs) -> None:
    """And trains on at its own pace until then."""
    nodes = make_nodes(nodes=2, nproc=1)
    slow = ("--chaos", "kind=slow,rank=0,delay=0.2,step=20")
    both = [start(nodes, f"n{i}", "--node-rank", str(i), *slow) for i in (0, 1)]
    spare = start(nodes, "spare", "--standby")
    for node in (*both, spare):
        assert node.wait() == 0, node.said
    (incident,) = both[1].outcome["incidents"]
    assert incident["policy"] == "hot-switch"
    assert "rank 0 is slow: it computes" in incident["headline"]
    assert spare.pids(0)
    assert len(both[1].pids(1)) == 1
    same_as_without(jobs, nodes, 200)
