"""The smallest DDP script: every rank learns the same linear teacher from its share of the samples.

    torchrun --nproc_per_node 4 examples/plain/ddp_min.py
"""

import argparse
import itertools
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--digest", metavar="FILE", help="write the final state of rank r to FILE.r.pt")
args = parser.parse_args()


def endless(loader):
    for epoch in itertools.count():
        loader.sampler.set_epoch(epoch)
        yield from loader


def train(model, optimizer, x, y):
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
random.seed(0)
x = torch.randn(4096, 16)
dataset = TensorDataset(x, x @ torch.randn(16, 1))
model = DDP(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(dataset, batch_size=64 // world, sampler=DistributedSampler(dataset), drop_last=True)
batches = endless(loader)

for step in range(args.steps):
    x, y = next(batches)
    loss = train(model, optimizer, x, y)
    if rank == 0 and (step + 1) % 10 == 0:
        print(f"step {step + 1} loss {loss.item():.4f}", flush=True)

if args.digest:
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "sample_ids": []}
    state |= {"rng_torch": torch.get_rng_state(), "rng_python": random.getstate()}
    torch.save(state, f"{args.digest}.{rank}.pt")
dist.destroy_process_group()
