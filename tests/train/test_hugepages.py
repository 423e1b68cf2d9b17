"""Large state comes to stand in huge pages: in ranks, in the one that is to replace them, and with the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from onward.train.hugepages import HUGE, collapse, ranges

pytestmark = pytest.mark.torch


def huge_bytes() -> int:
    """What of this process stands in huge pages."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("AnonHugePages:"):
            return int(line.split()[1]) << 10
    return 0


def large(count: int) -> torch.Tensor:
    return torch.arange(count * HUGE // 8, dtype=torch.int64)


@pytest.fixture
def kernel() -> None:
    """One that does it."""
    probe = large(4)
    if not collapse(ranges([probe])):
        pytest.skip("this kernel has no huge pages to give (MADV_COLLAPSE, since 6.1)")


def test_whole_pages_between_the_ends() -> None:
    t = large(3)
    ((begin, end),) = ranges([t, t[5:], torch.zeros(3), torch.empty(0)])
    assert begin % HUGE == end % HUGE == 0
    assert t.data_ptr() <= begin < end <= t.data_ptr() + t.nbytes
    assert end - begin >= HUGE


def test_what_is_small_alone_is_large_together() -> None:
    base = large(8)
    parts = [base[i : i + 1000].clone() for i in range(3)]
    assert ranges(parts) == []
    memory = memoryview(bytearray(4 * HUGE))
    half = HUGE // 2
    neighbours = [torch.frombuffer(memory[at : at + half], dtype=torch.uint8) for at in range(0, 4 * HUGE, half)]
    assert all(ranges([t]) == [] for t in neighbours)
    ((begin, end),) = ranges(neighbours)
    assert end - begin >= 3 * HUGE


def test_the_numbers_stay(kernel: None) -> None:
    t = large(8)
    address = t.data_ptr()
    collapse(ranges([t]))
    assert huge_bytes() >= 6 * HUGE
    assert t.data_ptr() == address
    assert torch.equal(t, torch.arange(t.numel()))


SCRIPT = """
import argparse, sys, time
sys.path.insert(0, {tests!r})
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from test_hugepages import HUGE, huge_bytes
import onward
parser = argparse.ArgumentParser()
parser.add_argument("--digest")
args = parser.parse_args()
run = onward.init()
torch.manual_seed(0)
model = DDP(nn.Linear(2048, 1024))
optimizer = torch.optim.AdamW(model.parameters())
run.protect(model=model, optimizer=optimizer)
for step in run.steps(30):
    with step:
        model(torch.ones(2, 2048)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
until = time.monotonic() + 30
while huge_bytes() < 6 * HUGE:  # of 24 MB: parameters, and two for each in the optimizer
    assert time.monotonic() < until, f"{{huge_bytes()}} bytes in huge pages"
    time.sleep(0.01)
state = {{"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "sample_ids": []}}
torch.save(state, f"{{args.digest}}.{{run.rank}}.pt")
"""


def test_ranks_and_replacements(kernel: None, jobs, tmp_path) -> None:
    script = tmp_path / "job.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parent)))
    result = jobs.run(script, nproc=2, chaos=["kind=kill,rank=1,step=15"])
    assert result.code == 0, result.err[-3000:]
    assert result.policies() == ["recover-in-place"]
