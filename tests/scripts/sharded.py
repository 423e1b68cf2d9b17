"""Protects an optimizer whose state is spread over the ranks, which is refused."""

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

import onward

run = onward.init()
model = DDP(torch.nn.Linear(4, 1))
run.protect(model=model, optimizer=ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01))
