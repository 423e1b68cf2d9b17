"""Other jobs and other processes on the machine: nobody disturbs anybody."""

from __future__ import annotations

import os
import socket

import pytest
from kernel import alive
from launched import ROOT, Onward, kill

WAITS = """
    tell("up", os.getpid())
    wait_for("finish")
"""


def test_two_jobs_at_the_same_time(onward: Onward) -> None:
    """Same script, same name, same directory for logs; one of them is killed in the rudest way."""
    script = onward.script(WAITS)
    one = onward.start("-o", "json", "--job-name", "twin", script)
    first = set(one.pids("up", 2))
    two = onward.start("--job-name", "twin", "--log-dir", str(one.logs), script, name="two")
    second = set(one.pids("up", 4)) - first
    one.seen -= second
    assert len(second) == 2
    assert one.control["socket"] != two.control["socket"]
    assert one.control["token"] != two.control["token"]
    two.gather()
    kill(two.pid)
    two.nothing_left()
    assert all(alive(p) for p in first)
    assert not any(alive(p) for p in second)
    onward.go("finish")
    assert one.wait() == 0, one.err
    assert one.outcome["incidents"] == []
    assert {p for pids in one.outcome["pids"].values() for p in pids} == first


@pytest.mark.torch
def test_a_master_port_that_somebody_else_has(onward: Onward) -> None:
    """Rank 0 of a plain script would listen there, so it is not even started; with the library nobody does."""
    script = """
        import torch.distributed as dist
        dist.init_process_group("gloo")
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        flags = ["--max_restarts", "1", "--master_port", port]
        plain = onward.start(*flags, onward.script(script), warm=True, name="plain")
        ours = onward.start("-o", "json", *flags, str(ROOT / "examples/ddp_min.py"), "--steps", "3", warm=True)
        assert ours.wait() == 0, ours.err
        assert ours.outcome["steps"] == 3
        assert ours.outcome["incidents"] == []
        assert plain.wait() == 2
        assert f"rank 0 cannot listen on 127.0.0.1:{port}: the port is in use by pid {os.getpid()}" in plain.err
        assert "choose another one with --master-port" in plain.err, "with what to do about it"
