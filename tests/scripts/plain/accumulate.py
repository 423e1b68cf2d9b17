"""Gradient accumulation: four micro-batches an update, and only the last of them talks to the other ranks."""

import itertools
from contextlib import nullcontext

import torch
import torch.distributed as dist
from digest_out import arguments, samples, seed, write
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

args = arguments(__doc__)
dist.init_process_group("gloo")
rank = dist.get_rank()

torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
dataset = samples()
loader = DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset), drop_last=True)
seed(rank)


def endless():
    for epoch in itertools.count():
        loader.sampler.set_epoch(epoch)
        yield from loader


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


batches = endless()
for step in range(args.steps):
    loss = update(model, optimizer, list(itertools.islice(batches, 4)))
    if rank == 0 and (step + 1) % 5 == 0:
        print(f"step {step + 1} loss {loss:.4f}", flush=True)

write(args.digest, rank, model.module.state_dict(), optimizer.state_dict())
dist.destroy_process_group()
