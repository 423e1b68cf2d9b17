"""`onward manager` as a process of its own, which nobody starts again when it is killed: the agents see to it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from several import ROOT, Nodes
from waiting import until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
SCRIPT = "tests/scripts/paced.py"


@pytest.mark.nightly
def test_the_job_outlives_a_manager_that_is_gone_for_good(make_nodes, tmp_path) -> None:
    nodes: Nodes = make_nodes(nodes=2, nproc=1)
    where = f"127.0.0.1:{nodes.port}"
    words = ["manager", "--listen", where, "--nodes", "2", "--hang-floor", "4"]
    with (tmp_path / "manager.err").open("wb") as err:
        manager = subprocess.Popen([sys.executable, "-m", "onward.cli.main", *words], stderr=err, cwd=ROOT)
    try:
        faults = ["--chaos", "kind=kill,rank=1,step=120"]
        script = [SCRIPT, "--steps", "160", "--pace", "0.05"]
        first, second = (nodes.start(f"n{i}", "--manager", where, *faults, script=script) for i in (0, 1))
        until(lambda: first.said.count("committed") > 20, "it trains")
        manager.kill()
        assert (first.wait(), second.wait()) == (0, 0), first.said + second.said
    finally:
        manager.kill()
        manager.wait()
    assert "somebody looks for a manager here" in first.said + second.said
    assert [i["policy"] for i in first.outcome["incidents"]] == ["recover-in-place"], "cured by the new one"
    assert first.outcome["steps_lost"] == 0
