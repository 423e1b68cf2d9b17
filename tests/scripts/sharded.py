"""Protects what is spread over the ranks, in each way that torch has: all of it is refused."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

import onward

run = onward.init()
model = DDP(torch.nn.Linear(4, 1))
zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
wrapped = FullyShardedDataParallel(torch.nn.Linear(4, 4), device_id=torch.device("cpu"))
spread = torch.nn.Sequential(torch.nn.Linear(4, 4))
fully_shard(spread, mesh=init_device_mesh("cpu", (run.world_size,)))
adam = torch.optim.Adam(spread.parameters())
run.protect(model=model, zero=zero, wrapped=wrapped, spread=spread, adam=adam)
