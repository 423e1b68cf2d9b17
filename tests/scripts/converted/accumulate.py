"""Gradient accumulation: four micro-batches an update, and only the last of them talks to the other ranks."""

from contextlib import nullcontext

import torch
from digest_out import arguments, samples, seed, write
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

import onward

args = arguments(__doc__)
run = onward.init()
rank = run.rank

torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
run.protect(model=model, optimizer=optimizer)
batches = run.batches(samples(), global_batch=16 * run.world_size, micro_batch=4)
seed(rank)


def update(model, optimizer, micro_batches):
    total = 0.0
    for i, (x, y) in enumerate(micro_batches):
        last = i == len(micro_batches) - 1
        with nullcontext() if last else model.no_sync():
            loss = F.mse_loss(model(x), y) / len(micro_batches)
            loss.backward()
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    return total


for step in run.steps(args.steps):
    with step:
        loss = update(model, optimizer, list(batches))
    if step.committed and rank == 0 and (step.index + 1) % 5 == 0:
        print(f"step {step.index + 1} loss {loss:.4f}", flush=True)

write(args.digest, rank, model.module.state_dict(), optimizer.state_dict())
