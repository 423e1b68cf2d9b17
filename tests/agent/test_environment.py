"""The environment of a rank is torchrun's, name for name and value for value."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from kernel import free_port
from launched import TORCHRUN, Onward

SCRIPT = """
    import json, sys
    path = os.path.join(sys.argv[1], "env.%d.json" % RANK)
    json.dump(dict(os.environ), open(path, "w"))
"""
FREE = {"TORCHELASTIC_ERROR_FILE"}  # differs from run to run of torchrun too
# torchrun's agent listens on MASTER_PORT and ranks connect to it; with us that port is free for the script's own store.
OURS = {"TORCHELASTIC_USE_AGENT_STORE": "False"}


def seen_by_ranks(path: Path) -> list[dict[str, str]]:
    return [json.loads((path / f"env.{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.torch
def test_it_is_torchruns(onward: Onward) -> None:
    script = onward.script(SCRIPT)
    theirs, ours = onward.tmp / "theirs", onward.tmp / "ours"
    theirs.mkdir()
    ours.mkdir()
    flags = ["--nproc_per_node", "2", "--max_restarts", "5", "--role", "trainer", "--master_port", str(free_port())]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHELASTIC", "PET_", "OMP_", "ONWARD"))}
    command = [TORCHRUN, *flags, script, str(theirs)]
    subprocess.run(command, check=True, capture_output=True, timeout=240, env=clean)
    job = onward.run(*flags, script, str(ours))
    assert job.process.returncode == 0, job.err
    for rank, (a, b) in enumerate(zip(seen_by_ranks(theirs), seen_by_ranks(ours), strict=True)):
        set_by_torchrun = {k for k in a if k not in clean}
        assert {"RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"} <= set_by_torchrun
        missing = set_by_torchrun - set(b)
        assert not missing, f"rank {rank} lacks {missing}"
        for name in sorted(set_by_torchrun - FREE):
            assert b[name] == OURS.get(name, a[name]), f"rank {rank}: {name}"
        added = {k for k in b if k not in clean} - set_by_torchrun
        assert all(k.startswith("ONWARD_") for k in added), f"foreign variables: {added}"
        for name in FREE:
            assert b[name], name
    assert [env["RANK"] for env in seen_by_ranks(ours)] == ["0", "1"]


def test_what_the_user_has_set_stays(onward: Onward) -> None:
    mine = {
        "OMP_NUM_THREADS": "3",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "MY_OWN": "kept",
        "RANK": "77",
        "WORLD_SIZE": "99",
    }
    (onward.tmp / "env").mkdir()
    job = onward.run(
        "--rdzv-id", "my job/1", "--master_port", "29511", onward.script(SCRIPT), str(onward.tmp / "env"), env=mine
    )
    assert job.process.returncode == 0, job.err
    for rank, env in enumerate(seen_by_ranks(onward.tmp / "env")):
        assert (env["RANK"], env["WORLD_SIZE"]) == (str(rank), "2"), "but not what says who a rank is"
        assert env["OMP_NUM_THREADS"] == "3"
        assert env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
        assert env["MY_OWN"] == "kept"
        assert env["MASTER_PORT"] == "29511"
        assert env["TORCHELASTIC_RUN_ID"] == "my job/1"


@pytest.mark.torch
def test_the_only_rank_computes_with_as_many_threads(onward: Onward) -> None:
    """torchrun leaves them to torch there, and the warm parent had been held to one for the fork."""
    script = onward.script("import sys, torch\ntell(sys.argv[1], torch.get_num_threads())")
    for how, warm in (("warm", True), ("cold", False)):
        job = onward.run(script, how, nproc=1, warm=warm, name=how)
        assert job.process.returncode == 0, job.err
    warm, cold = ((onward.tmp / f"told.{how}").read_text() for how in ("warm", "cold"))
    assert int(warm) == int(cold) >= 1
