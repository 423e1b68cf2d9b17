"""A node vanishes with everything on it: another takes its place, nobody else notices more than a pause."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kernel import free_port
from several import Node, Nodes
from waiting import until

from onward.agent.control import Control, running_jobs

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
SCRIPT, STEPS = "tests/scripts/endurance.py", "160"


def train(nodes: Nodes) -> list[str]:
    return [SCRIPT, "--steps", STEPS, "--digest", nodes.digest]


def start_two(nodes: Nodes, *chaos: str) -> tuple[Node, Node]:
    flags = [f for spec in chaos for f in ("--chaos", spec)]
    first = nodes.start("n0", "--node-rank", "0", *flags, script=train(nodes))
    return first, nodes.start("n1", "--node-rank", "1", *flags, script=train(nodes))


def same_as_on_one_node(jobs, nodes: Nodes) -> None:
    reference = jobs.reference(SCRIPT, "--steps", STEPS)
    digest = Path(__file__).parents[2] / "examples" / "digest.py"
    compare = [sys.executable, str(digest), reference.digest, nodes.digest]
    done = subprocess.run(compare, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_standby_takes_the_place_of_any_node(make_nodes, jobs, lost: int) -> None:
    """Node 0 is the one of rank 0, of the store and of the manager: it is like any other."""
    nodes = make_nodes()
    both = start_two(nodes, f"kind=kill-agent,node={lost},step=60")
    spare = nodes.start("spare", "--standby", script=train(nodes))
    left = both[1 - lost]
    assert both[lost].wait() == -signal.SIGKILL, "the fault fired"
    assert left.wait() == 0, left.said
    assert spare.wait() == 0, spare.said
    assert "standing by as" in spare.said
    assert f"taking the place of node {lost}: starting rank" in spare.said
    outcome = left.outcome
    assert [i["policy"] for i in outcome["incidents"]] == ["recover"]
    assert f"lost with node {lost}" in outcome["incidents"][0]["headline"]
    assert outcome["steps_lost"] == 0
    for rank in (0, 1) if lost else (2, 3):
        assert len(left.pids(rank)) == 1, "who was not on the lost node keeps its process"
    same_as_on_one_node(jobs, nodes)


@pytest.mark.nightly
@pytest.mark.parametrize("lost", [0, 1])
def test_a_standby_has_its_processes_ready_before_anybody_is_lost(make_nodes, tmp_path: Path, lost: int) -> None:
    """Also of a script that exchanges something in its set-up: it is told what the others had heard there."""
    nodes = make_nodes()
    script = ["tests/scripts/followed.py", "--steps", "400", "--pace", "0.02", "--digest", nodes.digest]
    both = [nodes.start(f"n{i}", "--node-rank", str(i), script=script) for i in (0, 1)]
    spare = nodes.start("spare", "--standby", script=script)
    left, moved = both[1 - lost], (2 * lost, 2 * lost + 1)
    until(lambda: "ready to take the place of node 0 or 1 at once" in spare.said, "it has prepared", 90.0)
    both[lost].kill()
    assert [left.wait(), spare.wait()] == [0, 0], left.said + spare.said
    assert [i["policy"] for i in left.outcome["incidents"]] == ["recover"]
    assert left.outcome["steps_lost"] == 0
    for rank in moved:
        assert f"rank {rank}: the spare (pid {spare.pids(rank)[0]}) takes over" in spare.events
    assert len(list(tmp_path.glob("logs-spare/*/rank*.stdout.log"))) >= 4, "a process for each rank of the job"
    plain = make_nodes()
    plain.digest += "-plain"
    whole = [plain.start(f"p{i}", "--node-rank", str(i), script=[*script[:-1], plain.digest]) for i in (0, 1)]
    assert [n.wait() for n in whole] == [0, 0]
    digest = Path(__file__).parents[2] / "examples" / "digest.py"
    compare = [sys.executable, str(digest), plain.digest, nodes.digest]
    done = subprocess.run(compare, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
def test_who_comes_beyond_the_nodes_that_are_needed_stands_by(make_nodes, jobs) -> None:
    nodes = make_nodes()
    nodes.flags[nodes.flags.index("--nnodes") + 1] = "2:3"
    first, second = start_two(nodes, "kind=kill-agent,node=1,step=60")
    until(lambda: "all 4 ranks came" in first.events, "it begins with two")
    third = nodes.start("n2", script=train(nodes))
    assert second.wait() == -signal.SIGKILL
    assert (first.wait(), third.wait()) == (0, 0), first.said + third.said
    assert "standing by as" in third.said
    assert [i["policy"] for i in first.outcome["incidents"]] == ["recover"]
    assert [len(first.pids(r)) for r in (0, 1)] == [1, 1]
    same_as_on_one_node(jobs, nodes)


@pytest.mark.nightly
def test_nobody_is_called_lost_or_slow_or_hung_on_a_full_machine(make_nodes, tmp_path: Path) -> None:
    """Five processes for every core that do nothing but compute; the time after which a node is lost is the default."""
    nodes = make_nodes(nodes=3, nproc=1)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(5 * (os.cpu_count() or 1))]
    try:
        script = ["tests/scripts/paced.py", "--steps", "400", "--pace", "0.05"]
        started = [nodes.start(f"n{i}", "--node-rank", str(i), script=script) for i in range(3)]
        assert [n.wait(240) for n in started] == [0, 0, 0], started[0].said[-4000:]
    finally:
        for p in busy:
            p.kill()
            p.wait()
    assert started[0].outcome["incidents"] == []
    assert started[0].outcome["conditions"] == []
    assert "no sign of life" not in "".join(n.events for n in started)


@pytest.mark.nightly
@pytest.mark.parametrize("lose", ["", ",lose=journal"])
@pytest.mark.parametrize("appends", range(1, 8))
def test_the_manager_dies_as_well_after_any_record(make_nodes, jobs, appends: int, lose: str) -> None:
    nodes = make_nodes()
    chaos = ("kind=kill-agent,node=1,step=60", f"kind=kill-manager,node=0,step=40,appends={appends}{lose}")
    first, second = start_two(nodes, *chaos)
    spare = nodes.start("spare", "--standby", script=train(nodes))
    assert second.wait() == -signal.SIGKILL, "the fault fired"
    assert first.wait() == 0, first.said
    assert spare.wait() == 0, spare.said
    assert [i["policy"] for i in first.outcome["incidents"]] == ["recover"]
    assert [len(first.pids(r)) for r in (0, 1)] == [1, 1]
    assert "the manager ended (SIGKILL)" in first.said
    same_as_on_one_node(jobs, nodes)


@pytest.mark.nightly
@pytest.mark.parametrize("lost", [0, 1])
def test_a_node_that_joins_later_takes_the_place(make_nodes, jobs, lost: int) -> None:
    """Where node 0 was the one that is lost, it finds the job by the list of places to look."""
    nodes = make_nodes()
    nodes.flags += ["--rdzv-endpoint", f"{nodes.address}:{nodes.port},{nodes.address}:{free_port(nodes.address)}"]
    both = start_two(nodes, f"kind=kill-agent,node={lost},step=60")
    left = both[1 - lost]
    assert both[lost].wait() == -signal.SIGKILL
    until(lambda: "another node takes over rank" in left.said, "the loss is noticed")
    late = nodes.start("late", "--standby", script=train(nodes))
    assert (left.wait(), late.wait()) == (0, 0), left.said + late.said
    assert [i["policy"] for i in left.outcome["incidents"]] == ["recover"]
    assert [len(left.pids(rank)) for rank in ((0, 1) if lost else (2, 3))] == [1, 1]
    assert late.outcome["goodput"] > 0.5, "of its own time, not of what was before it came"
    same_as_on_one_node(jobs, nodes)


@pytest.mark.nightly
@pytest.mark.parametrize("noticed", [True, False])
def test_node_0_comes_back_with_the_command_line_it_had(make_nodes, jobs, noticed: bool) -> None:
    """As a supervisor or a pod restarts it: it is told where the job is now, whether that has missed it or not yet."""
    nodes = make_nodes()
    first, second = start_two(nodes)
    until(lambda: _steps(nodes) >= 40, "it trains")
    first.kill()
    if noticed:
        until(lambda: "another node takes over rank" in second.said, "the loss is noticed")
    again = nodes.start("again", "--node-rank", "0", script=train(nodes))
    assert [second.wait(), again.wait()] == [0, 0], second.said + again.said
    assert [i["policy"] for i in second.outcome["incidents"]] == ["recover"]
    assert second.outcome["steps_lost"] == 0
    assert [len(second.pids(r)) for r in (2, 3)] == [1, 1]
    same_as_on_one_node(jobs, nodes)


@pytest.mark.nightly
def test_faults_of_ranks_and_of_the_manager_are_cured_in_place_on_any_node(make_nodes, jobs) -> None:
    nodes = make_nodes()
    faults = ("kind=kill,rank=3,step=40", "kind=kill-manager,step=70", "kind=exception,rank=0,step=100")
    first, second = start_two(nodes, *faults)
    assert (first.wait(), second.wait()) == (0, 0), first.said + second.said
    assert [i["policy"] for i in first.outcome["incidents"]] == ["recover-in-place", "retry"]
    assert [len(first.pids(r)) for r in (0, 1)] + [len(second.pids(r)) for r in (2, 3)] == [1, 1, 1, 2]
    assert "the manager ended (SIGKILL)" in first.said
    same_as_on_one_node(jobs, nodes)


@pytest.mark.nightly
@pytest.mark.parametrize("rank", [3, 1])
def test_without_recover_in_place_a_killed_rank_costs_its_node(make_nodes, jobs, rank: int) -> None:
    """Of node 1, or of the node of rank 0, of the store and of the manager, which goes on there."""
    nodes = make_nodes()
    nodes.flags += ["--recover-strategy", "recover"]
    both = start_two(nodes, f"kind=kill,rank={rank},step=60")
    spare = nodes.start("spare", "--standby", script=train(nodes))
    left, given_up = both[1 - rank // 2], both[rank // 2]
    assert [n.wait() for n in (*both, spare)] == [0, 0, 0], left.said + given_up.said + spare.said
    node, moved, stay = rank // 2, ((0, 1), (2, 3))[rank // 2], ((2, 3), (0, 1))[rank // 2]
    assert f"taking the place of node {node}: starting rank" in spare.said
    assert f"node {node} is not ours any more" in given_up.events, "its other rank is ended, and it stands by"
    (incident,) = left.outcome["incidents"]
    assert incident["policy"] == "recover"
    assert incident["headline"] == f"rank {rank} killed (SIGKILL)"
    assert left.outcome["steps_lost"] == 0
    assert [len(left.pids(r)) for r in stay] == [1, 1], "who was not on that node keeps its process"
    assert [len(spare.pids(r)) for r in moved] == [1, 1]
    same_as_on_one_node(jobs, nodes)


@pytest.mark.nightly
def test_a_place_that_goes_to_another_node_and_back_again_loses_no_step(make_nodes, jobs) -> None:
    """The node that comes back to it still has what it kept of its ranks then; newer copies are elsewhere."""
    nodes = make_nodes()
    nodes.flags += ["--recover-strategy", "recover,exit"]
    first = nodes.start("n0", "--node-rank", "0", script=train(nodes))
    second = nodes.start("n1", "--node-rank", "1", "--chaos", "kind=kill,rank=3,step=50", script=train(nodes))
    third = nodes.start("spare", "--standby", "--chaos", "kind=kill,rank=3,step=120", script=train(nodes))
    assert [n.wait() for n in (first, second, third)] == [0, 0, 0], first.said + second.said + third.said
    assert [(i["policy"], i["headline"]) for i in first.outcome["incidents"]] == [
        ("recover", "rank 3 killed (SIGKILL)"), ("recover", "rank 3 killed (SIGKILL)")
    ]  # fmt: skip
    assert first.outcome["steps_lost"] == 0
    assert [len(first.pids(r)) for r in (0, 1)] == [1, 1]
    assert [len(second.pids(r)) for r in (2, 3)] == [2, 2], "it had the place before and after"
    same_as_on_one_node(jobs, nodes)


@pytest.mark.nightly
def test_where_no_other_node_is_there_its_ranks_begin_again_on_it(make_nodes, jobs) -> None:
    nodes = make_nodes()
    nodes.flags += ["--recover-strategy", "recover"]
    first, second = start_two(nodes, "kind=kill,rank=3,step=60")
    assert (first.wait(), second.wait()) == (0, 0), first.said + second.said
    assert [i["policy"] for i in first.outcome["incidents"]] == ["recover"]
    assert first.outcome["steps_lost"] == 0
    assert [len(first.pids(r)) for r in (0, 1)] + [len(second.pids(r)) for r in (2, 3)] == [1, 1, 2, 2]
    same_as_on_one_node(jobs, nodes)


@pytest.mark.nightly
def test_a_node_that_is_told_to_leave_is_replaced(make_nodes, jobs) -> None:
    nodes = make_nodes()
    first, second = start_two(nodes, "kind=slow,rank=0,step=15,delay=0.1,steps=60")  # so that there is time to tell it
    spare = nodes.start("spare", "--standby", script=train(nodes))
    until(lambda: _steps(nodes) >= 20, "it trains")
    second.process.send_signal(signal.SIGTERM)
    assert second.wait() == 128 + signal.SIGTERM, second.said
    assert (first.wait(), spare.wait()) == (0, 0), first.said + spare.said
    assert "told to leave" in first.outcome["incidents"][0]["headline"]
    same_as_on_one_node(jobs, nodes)


def _steps(nodes: Nodes) -> int:
    """How far the job is, by the status of the node that hosts its manager."""
    for job in running_jobs():
        if job.pid == nodes.started[0].pid:
            control = Control(job)
            view = control.status().view
            control.close()
            return view.step if view is not None else 0
    return 0
