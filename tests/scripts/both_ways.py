"""One model, one loop body, started plainly (torchrun) or with the library (--with-onward): the numbers must agree."""

import argparse
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--digest")
parser.add_argument("--with-onward", action="store_true")
args = parser.parse_args()

if args.with_onward:
    import onward

    run = onward.init()
else:
    dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
random.seed(rank)
layers = [nn.Linear(64, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, 512), nn.ReLU()]
model = DDP(nn.Sequential(*layers, nn.Linear(512, 10)), bucket_cap_mb=1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def train():
    loss = nn.functional.cross_entropy(model(torch.randn(32, 64)), torch.randint(0, 10, (32,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


if args.with_onward:
    run.protect(model=model, optimizer=optimizer)
    for step in run.steps(args.steps):
        with step:
            train()
else:
    for _ in range(args.steps):
        train()

if args.digest:
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "sample_ids": []}
    state |= {"rng_torch": torch.get_rng_state(), "rng_python": random.getstate()}
    torch.save(state, f"{args.digest}.{rank}.pt")
