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
WAITS = ["--recover-strategy", "recover-in-place,recover,elastic-training,dump", "--wait-reschedule-timeout", "1"]
AT_ONCE = "kind=drop-connections,rank={rank},step={step}"  # without `retry` this is not cured in place


def script_of(nodes: Nodes, saved: Path, steps: int, tells: int = 0) -> list[str]:
    exchange = ["--exchange", str(tells)]
    return [SCRIPT, "--steps", str(steps), "--dir", str(saved), "--digest", nodes.digest, *exchange]


def start(nodes: Nodes, least: int, size: int, script: list[str], ladder: list[str], *kinds: str) -> list[Node]:
    nodes.flags[nodes.flags.index("--nnodes") + 1] = f"{least}:{size}"
    faults = [f for kind in kinds for f in ("--chaos", kind)]
    return [nodes.start(f"n{i}", "--node-rank", str(i), *ladder, *faults, script=script) for i in range(size)]


def check_ledger(tmp: Path, steps: int) -> None:
    counted = ledger(tmp)
    assert sorted(counted) == list(range(steps))
    for step, ids in counted.items():
        assert len(ids) == len(set(ids)) == GLOBAL_BATCH, f"step {step}: {sorted(ids)}"


def short_start(nodes: Nodes, tmp: Path, lost: int, *more: str, ladder: list[str] = LADDER) -> list[Node]:
    """Four nodes, three, a dump, the same three, and four again. Returns those who stayed."""
    steps = 100
    kinds = (f"kind=kill-agent,node={lost},step=15", AT_ONCE.format(rank=(lost + 1) % 4, step=40), *more)
    script = script_of(nodes, tmp / "saved", steps, tells=int(lost == 0))
    started = start(nodes, 2, 4, script, ladder, *kinds)
    stay = [n for n in started if n is not started[lost]]
    assert started[lost].wait() == -signal.SIGKILL
    until(lambda: any("3 of 4 ranks came; forming" in n.events for n in stay), "they start again")
    as_before = ["--node-rank", "0"] if lost == 0 else ["--standby"]  # where the job began somebody must answer
    back = nodes.start("back", *as_before, *ladder, script=script)
    for node in [*stay, back]:
        assert node.wait() == 0, node.said[-4000:]
    incidents = stay[0].outcome["incidents"]
    assert [i["policy"] for i in incidents] == ["elastic-training", "dump", "elastic-training"]
    assert f"rank {lost} joins again" in incidents[-1]["headline"]
    assert sum(n.outcome["steps_lost"] for n in stay) == 0
    assert len(back.pids(lost)) == 1
    check_ledger(tmp, steps)
    return stay


def test_a_dump_while_a_node_is_missing_goes_on_with_the_others(make_nodes, tmp_path: Path) -> None:
    stay = short_start(make_nodes(nodes=4, nproc=1), tmp_path, 3)
    assert [len(node.pids(rank)) for rank, node in enumerate(stay)] == [2, 2, 2]
    first, again = told(tmp_path, "n1", 1)
    assert told(tmp_path, "back", 3) == [again.replace("told 1 ", "told 3 ")], "it is told what the others were"
    assert first.startswith("told 1 4 4 ")
    assert again.startswith("told 1 4 4 "), "all four are counted in the set-up"


def told(tmp: Path, node: str, rank: int) -> list[str]:
    """What the rank had from the others in its set-up, in each start."""
    logs = sorted((tmp / f"logs-{node}").glob(f"*/rank{rank}.*.stdout.log"))
    lines = [line for log in logs for line in log.read_text().splitlines()]
    return list(dict.fromkeys(line for line in lines if line.startswith("told")))


@pytest.mark.nightly
@pytest.mark.parametrize("lost", [0, 1])
def test_any_node_may_be_missing(make_nodes, tmp_path: Path, lost: int) -> None:
    """Also the one of rank 0, of the store and of the manager."""
    short_start(make_nodes(nodes=4, nproc=1), tmp_path, lost)


@pytest.mark.nightly
def test_a_node_that_was_waited_for_is_not_waited_for_again(make_nodes, tmp_path: Path) -> None:
    short_start(make_nodes(nodes=4, nproc=1), tmp_path, 3, ladder=WAITS)


@pytest.mark.nightly
@pytest.mark.parametrize("appends", range(1, 10))
def test_the_manager_dies_in_the_middle_of_it(make_nodes, tmp_path: Path, appends: int) -> None:
    kill = f"kind=kill-manager,node=0,step=38,appends={appends}"
    stay = short_start(make_nodes(nodes=4, nproc=1), tmp_path, 3, kill)
    assert "the manager ended (SIGKILL)" in stay[0].said


@pytest.mark.nightly
def test_below_its_least_nodes_a_job_waits_with_a_reason_and_starts_again_when_enough_are_there(
    make_nodes, tmp_path: Path
) -> None:
    """Two of three nodes are lost, the second with the last process that is left: nobody holds the state any more."""
    nodes = make_nodes(nodes=3, nproc=1)
    kinds = ("kind=kill-agent,node=2,step=15", "kind=kill-agent,node=1,step=40", "kind=kill,rank=0,step=40")
    script = script_of(nodes, tmp_path / "saved", 80)
    first, second, third = start(nodes, 2, 3, script, LADDER, *kinds)
    assert (second.wait(), third.wait()) == (-signal.SIGKILL, -signal.SIGKILL)
    reasons = ("the job needs 2 nodes, and only 1 is here", "at least 2 nodes; 1 are left")  # whose end is seen first
    until(lambda: any(why in first.events for why in reasons), "the reason is said")
    assert first.process.poll() is None
    back = nodes.start("back", "--standby", *LADDER, script=script)
    assert (first.wait(), back.wait()) == (0, 0), first.said[-4000:] + back.said[-4000:]
    assert "2 of 3 ranks came; forming" in first.events
    assert "resuming from the checkpoint of step" in first.events
    counted = ledger(tmp_path)
    assert sorted(counted) == list(range(80))
    assert all(set(ids) == set(ids[:GLOBAL_BATCH]) for ids in counted.values()), "a step that is redone is the same"


@pytest.mark.nightly
def test_a_set_up_that_needs_an_absent_rank_waits_for_its_node(make_nodes, tmp_path: Path) -> None:
    """It is not made for fewer ranks, and that is not taken for an error of the script."""
    nodes = make_nodes(nodes=3, nproc=1)
    script = script_of(nodes, tmp_path / "saved", 80, tells=2)
    kinds = ("kind=kill-agent,node=2,step=15", AT_ONCE.format(rank=0, step=40))
    first, second, third = start(nodes, 2, 3, script, LADDER, *kinds)
    assert third.wait() == -signal.SIGKILL
    until(lambda: "with fewer ranks the script did not come to its first step" in first.events, "it is seen")
    assert "broadcast: its root is rank 2 of the group, which is absent while this set-up runs" in first.said
    back = nodes.start("back", "--standby", *LADDER, script=script)
    assert [n.wait() for n in (first, second, back)] == [0, 0, 0], first.said[-4000:]
    assert "resuming from the checkpoint of step 40" in first.events
    check_ledger(tmp_path, 80)


@pytest.mark.nightly
def test_a_job_begins_without_a_node_that_does_not_come(make_nodes, tmp_path: Path) -> None:
    """As with torchrun, after a last call of half a minute; and the node joins when it comes."""
    nodes = make_nodes(nodes=3, nproc=1)
    nodes.flags[nodes.flags.index("--nnodes") + 1] = "2:3"
    script = script_of(nodes, tmp_path / "saved", 400)
    first, second = (nodes.start(f"n{i}", "--node-rank", str(i), *LADDER, script=script) for i in (0, 1))
    until(lambda: "counted 0 " in first.said, "it trains")
    assert "node 2 did not come; starting with 2 of 3 ranks and the same global batch" in first.events
    third = nodes.start("n2", "--node-rank", "2", *LADDER, script=script)
    assert [n.wait() for n in (first, second, third)] == [0, 0, 0], first.said[-4000:]
    assert [i["headline"] for i in first.outcome["incidents"]] == ["rank 2 joins again (node 2 is ready)"]
    assert [len(n.pids(rank)) for rank, n in enumerate((first, second, third))] == [1, 1, 1]
    check_ledger(tmp_path, 400)
