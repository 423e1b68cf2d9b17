"""Faults that are published on any node of a job, by the command line, with real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from several import Node, Nodes
from waiting import until

from onward.agent.control import Control, running_jobs

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
SCRIPT = "tests/scripts/paced.py"


def onward(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onward.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def view_of(node: Node) -> Any:
    for job in running_jobs():
        if job.pid == node.pid:
            control = Control(job)
            try:
                return control.status().view
            finally:
                control.close()
    return None


def step_of(node: Node) -> int:
    view = view_of(node)
    return view.step if view is not None else 0


def faults(node: Node) -> list[dict[str, Any]]:
    done = onward("fault", "list", str(node.pid), "-o", "json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["faults"]
    return found


@pytest.mark.nightly
def test_levels_act_on_the_right_processes_and_survive_the_manager(make_nodes) -> None:
    nodes: Nodes = make_nodes(nodes=2, nproc=1)
    script = [SCRIPT, "--steps", "260", "--pace", "0.04"]
    chaos = ("--chaos", "kind=kill-manager,step=60")
    first = nodes.start("n0", "--node-rank", "0", "--spares", "none", *chaos, script=script)
    second = nodes.start("n1", "--node-rank", "1", "--spares", "none", *chaos, script=script)
    third = nodes.start("s0", "--standby", "--spares", "none", script=script)
    until(lambda: step_of(second) >= 5, "it trains")
    until(lambda: view_of(third) is not None, "one stands by")

    wrong = onward("fault", "report", str(second.pid), "--level", "seperate", "--code", "x y", "--rank", "7")
    assert wrong.returncode == 2
    assert "did you mean 'separate'?" in wrong.stderr
    assert "code 'x y'" in wrong.stderr
    assert "rank 7 is not one of the 2 ranks" in wrong.stderr

    pids = {r.rank: r.pid for n in (first, second) for r in view_of(n).ranks}
    told = ("--level", "retry", "--code", "link-1", "--rank", "0", "--text", "link flapped")
    done = onward("fault", "report", str(third.pid), *told)
    assert done.returncode == 0, done.stderr
    until(lambda: view_of(first).incidents == 1 and view_of(first).phase == "Running", "the step was redone")
    onward("fault", "report", str(third.pid), "--level", "sub-health", "--code", "ecc-2", "--node", "0", "--for", "1h")
    until(lambda: "the manager ended (SIGKILL)" in first.said, "the manager is gone", 30.0)
    until(lambda: [f["code"] for f in faults(second)] == ["link-1", "ecc-2"], "and the faults are not", 20.0)

    done = onward("fault", "report", str(second.pid), "--level", "separate", "--code", "fan-3", "--node", "1")
    assert done.returncode == 0, done.stderr
    assert (first.wait(), second.wait(), third.wait()) == (0, 0, 0), first.said + second.said + third.said
    outcome = first.outcome
    assert [i["policy"] for i in outcome["incidents"]] == ["retry", "recover"]
    assert "separated by fault fan-3" in outcome["incidents"][1]["headline"]
    assert outcome["steps_lost"] == 0
    assert {c["code"] for c in outcome["conditions"]} == {"ecc-2", "fan-3"}
    assert first.pids(0) == [pids[0]], "who was not separated keeps its process"
    assert second.pids(1) == [pids[1]]
    assert len(third.pids(1)) == 1
