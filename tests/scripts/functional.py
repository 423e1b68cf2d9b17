"""Collectives as torch's compiler and its tensor library make them: functional ones, in a step and between steps."""

import argparse

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel as DDP

import onward

parser = argparse.ArgumentParser()
parser.add_argument("--digest")
args = parser.parse_args()

run = onward.init()
torch.manual_seed(run.rank)
mesh = init_device_mesh("cpu", (run.world_size,))
model = DDP(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
seen = {"sum": torch.zeros(4)}
run.protect(model=model, optimizer=optimizer, seen=seen)


def exchanged():
    """The same on every rank: gathered, reduced and scattered, and gathered again, one by one and two at once."""
    mine = torch.randn(2)
    whole = functional.all_gather_tensor(mine, 0, dist.group.WORLD)
    part = functional.reduce_scatter_tensor(whole, "sum", 0, dist.group.WORLD)
    one, two = functional.all_gather_into_tensor_coalesced([part, mine], dist.group.WORLD)
    three, _ = functional.reduce_scatter_tensor_coalesced([one, two], "sum", [0, 0], dist.group.WORLD)
    total = functional.all_reduce(three, "sum", dist.group.WORLD)
    spread = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)]).full_tensor()
    return torch.cat([total, one[:2]]) + spread


for step in run.steps(60):
    with step:
        seen["sum"] += exchanged()
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if step.committed and step.index % 4 == 3:
        exchanged()

if args.digest:
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "sample_ids": []}
    state |= {"seen": seen["sum"], "rng_torch": torch.get_rng_state()}
    torch.save(state, f"{args.digest}.{run.rank}.pt")
