"""Nobody takes the place of a lost node: the others go on with the same global batch, until somebody does."""

from __future__ import annotations

import signal
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from several import Node, Nodes
from torch import nn
from waiting import until

from onward.checkpoints import disk

pytestmark = [pytest.mark.torch]
SCRIPT = "tests/scripts/elastic.py"
LADDER = ["--recover-strategy", "recover-in-place,recover,elastic-training", "--wait-reschedule-timeout", "1"]
LADDER_AND_RETRY = ["--recover-strategy", "retry,recover-in-place,recover,elastic-training", *LADDER[2:]]
GLOBAL_BATCH = 48


def ledger(tmp: Path) -> dict[int, list[int]]:
    """step -> samples that counted, of all ranks on all nodes, by what the ranks themselves wrote."""
    found: dict[int, list[int]] = defaultdict(list)
    for log in tmp.glob("logs-*/*/rank*.stdout.log"):
        for line in log.read_text().splitlines():
            if line.startswith("counted"):
                step, *ids = map(int, line.split()[1:])
                found[step] += ids
    return found


def shrink_and_grow(
    nodes: Nodes, jobs, tmp: Path, size: int, losses: list[tuple[int, int]], steps: int, ladder: list[str] = LADDER,
    *more: str, pace: str = "0.05",
) -> Node:  # fmt: skip
    saved = tmp / "saved"
    script = [SCRIPT, "--steps", str(steps), "--pace", pace, "--digest", nodes.digest, "--dir", str(saved)]
    nodes.flags[nodes.flags.index("--nnodes") + 1] = f"1:{size}"
    kinds = [*(f"kind=kill-agent,node={node},step={step}" for node, step in losses), *more]
    faults = [f for kind in kinds for f in ("--chaos", kind)]
    started = [nodes.start(f"n{i}", "--node-rank", str(i), *ladder, *faults, script=script) for i in range(size)]
    first = started[0]
    for node, _ in losses:
        assert started[node].wait() == -signal.SIGKILL
    until(lambda: first.said.count("going on with") >= len(losses), "the others go on")
    back = [nodes.start(f"back{i}", "--standby", *ladder, script=script) for i in range(len(losses))]
    stay = [n for i, n in enumerate(started) if i not in {node for node, _ in losses}]
    for node in [*stay, *back]:
        assert node.wait() == 0, node.said[-4000:]
    policies = [i["policy"] for i in first.outcome["incidents"]]
    assert set(policies) == {"elastic-training"}
    assert any("joins again" in i["headline"] for i in first.outcome["incidents"]), "it has grown back"
    assert "once more" not in first.said, "whoever comes back joins at the first try"
    assert len(first.pids(0)) == 1, "no process of those who stayed was restarted"
    assert first.outcome["steps_lost"] == 0
    counted = ledger(tmp)
    assert sorted(counted) == list(range(steps))
    for step, ids in counted.items():
        assert len(ids) == len(set(ids)) == GLOBAL_BATCH, f"step {step}: {sorted(ids)}"
    written = [disk.read_manifest(folder) for folder in disk.folders(saved)]
    locals_of = [sum(name.startswith("local") for name in m.names()) for m in written]
    assert set(locals_of) >= {size - 1, size}, "with fewer ranks it is saved as well"
    for folder, manifest in zip(disk.folders(saved), written, strict=True):
        disk.verify(folder, manifest)
    reference = jobs.reference(SCRIPT, "--steps", str(steps), "--pace", "0", nproc=size, flags=tuple(LADDER))
    for rank in range(size):
        ours, theirs = (torch.load(f"{d}.{rank}.pt", weights_only=False) for d in (nodes.digest, reference.digest))
        assert ours["lr"] == theirs["lr"]
        for name, value in theirs["model"].items():
            torch.testing.assert_close(ours["model"][name], value, rtol=1e-4, atol=1e-5)
    return first


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_three_two_three(make_nodes, jobs, tmp_path: Path) -> None:
    shrink_and_grow(make_nodes(nodes=3, nproc=1), jobs, tmp_path, 3, [(2, 30)], 300)


@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize("lose", ["", ",lose=journal"])
@pytest.mark.parametrize("appends", range(1, 13))
def test_the_manager_dies_as_well_after_any_record(make_nodes, jobs, tmp_path: Path, appends: int, lose: str) -> None:
    """Of shrinking, of growing, and of what is between."""
    kill = f"kind=kill-manager,node=0,step=20,appends={appends}{lose}"
    first = shrink_and_grow(make_nodes(nodes=3, nproc=1), jobs, tmp_path, 3, [(2, 30)], 300, LADDER, kill)
    assert "the manager ended (SIGKILL)" in first.said


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_without_recover_nobody_is_waited_for(make_nodes, jobs, tmp_path: Path) -> None:
    alone = ["--recover-strategy", "elastic-training"]  # and 270 s to wait, if anybody did
    shrink_and_grow(make_nodes(nodes=3, nproc=1), jobs, tmp_path, 3, [(1, 30)], 300, alone)


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("least", [1, 3])
def test_without_recover_one_who_stands_by_takes_part_and_no_step_is_lost(
    make_nodes, tmp_path: Path, least: int
) -> None:
    """The others train until it is ready; where they are too few without it, they wait."""
    nodes = make_nodes(nodes=3, nproc=1)
    nodes.flags[nodes.flags.index("--nnodes") + 1] = f"{least}:3"
    ladder = ["--recover-strategy", "elastic-training", "--chaos", "kind=kill-agent,node=1,step=30"]
    script = [SCRIPT, "--steps", "250", "--pace", "0.03", "--digest", nodes.digest]
    first, lost, third = (nodes.start(f"n{i}", "--node-rank", str(i), *ladder, script=script) for i in range(3))
    spare = nodes.start("spare", "--standby", *ladder[:2], script=script)
    assert lost.wait() == -signal.SIGKILL
    assert [n.wait() for n in (first, third, spare)] == [0, 0, 0], first.said[-4000:]
    incidents = first.outcome["incidents"]
    assert [i["policy"] for i in incidents] == ["elastic-training"] * len(incidents)
    assert ("joins again" in incidents[-1]["headline"]) is (least == 1)
    assert first.outcome["steps_lost"] == 0
    assert [len(first.pids(0)), len(third.pids(2)), len(spare.pids(1))] == [1, 1, 1]
    counted = ledger(tmp_path)
    assert sorted(counted) == list(range(250))
    for step, ids in counted.items():
        assert len(ids) == len(set(ids)) == GLOBAL_BATCH, f"step {step}: {sorted(ids)}"


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_fault_while_it_is_shrunk_climbs_the_ladder_like_any_other(make_nodes, tmp_path: Path) -> None:
    nodes = make_nodes(nodes=3, nproc=1)
    nodes.flags[nodes.flags.index("--nnodes") + 1] = "1:3"
    kinds = ("kind=kill-agent,node=2,step=30", "kind=exception,rank=0,step=120", "kind=kill,rank=1,step=160")
    faults = [f for kind in kinds for f in ("--chaos", kind)]
    script = [SCRIPT, "--steps", "220", "--pace", "0.03", "--digest", nodes.digest]
    started = [nodes.start(f"n{i}", "--node-rank", str(i), *LADDER_AND_RETRY, *faults, script=script) for i in range(3)]
    first, second, third = started
    assert third.wait() == -signal.SIGKILL
    assert (first.wait(), second.wait()) == (0, 0), first.said[-4000:]
    policies = [i["policy"] for i in first.outcome["incidents"]]
    assert policies == ["elastic-training", "retry", "recover-in-place"]
    assert (len(first.pids(0)), len(second.pids(1))) == (1, 2)
    counted = ledger(tmp_path)
    assert sorted(counted) == list(range(220))
    for step, ids in counted.items():
        assert len(ids) == len(set(ids)) == GLOBAL_BATCH, f"step {step}: {sorted(ids)}"


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_four_three_two_four(make_nodes, jobs, tmp_path: Path) -> None:
    shrink_and_grow(make_nodes(nodes=4, nproc=1), jobs, tmp_path, 4, [(3, 30), (1, 80)], 450, pace="0.1")


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_the_gradient_with_fewer_ranks_is_that_of_the_global_batch(make_nodes, tmp_path: Path) -> None:
    """Computed by hand, from the parameters and the samples of each step; with 4, 3 and 2 ranks."""
    nodes = make_nodes(nodes=4, nproc=1)
    nodes.flags[nodes.flags.index("--nnodes") + 1] = "1:4"
    script = ["tests/scripts/gradients.py", "--steps", "120", "--digest", nodes.digest]
    faults = [f for node, step in ((3, 20), (2, 60)) for f in ("--chaos", f"kind=kill-agent,node={node},step={step}")]
    started = [nodes.start(f"n{i}", "--node-rank", str(i), *LADDER, *faults, script=script) for i in range(4)]
    assert [n.wait() for n in started] == [0, 0, -signal.SIGKILL, -signal.SIGKILL], started[0].said[-4000:]
    told = [torch.load(f"{nodes.digest}.{rank}.pt", weights_only=False) for rank in (0, 1)]
    x, y = told[0]["data"]
    counted = ledger(tmp_path)
    for step in range(120):
        mine, other = (t["shown"][step] for t in told)
        ids = counted[step]
        assert len(ids) == len(set(ids)) == 32, f"step {step}: {sorted(ids)}"
        net = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.LayerNorm(24), nn.Linear(24, 1))
        with torch.no_grad():
            for p, value in zip(net.parameters(), mine["at"], strict=True):
                p.copy_(value)
        nn.functional.mse_loss(net(x[ids]), y[ids]).backward()
        for p, here, there in zip(net.parameters(), mine["gradient"], other["gradient"], strict=True):
            torch.testing.assert_close(here, p.grad, rtol=1e-4, atol=1e-6)
            assert torch.equal(here, there), "the same on all ranks"
    assert [i["policy"] for i in started[0].outcome["incidents"]] == ["elastic-training", "elastic-training"]


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_below_its_least_nodes_a_job_waits_and_says_so(make_nodes) -> None:
    nodes = make_nodes(nodes=2, nproc=1)
    nodes.flags[nodes.flags.index("--nnodes") + 1] = "2:2"
    script = [SCRIPT, "--steps", "200"]
    faults = ["--chaos", "kind=kill-agent,node=1,step=30"]
    first, second = (nodes.start(f"n{i}", "--node-rank", str(i), *LADDER, *faults, script=script) for i in (0, 1))
    assert second.wait() == -signal.SIGKILL
    until(lambda: "at least 2 nodes; 1 are left" in first.said, "the reason is said")
    assert first.process.poll() is None
    back = nodes.start("back", "--standby", *LADDER, script=script)
    assert (first.wait(), back.wait()) == (0, 0), first.said + back.said
    assert [i["policy"] for i in first.outcome["incidents"]] == ["recover"]
