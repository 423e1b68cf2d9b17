"""A small job at a steady pace that says of every step that it counts."""

import argparse
import random
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import onward

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--pace", type=float, default=0.1, help="seconds a step takes at least")
parser.add_argument("--digest")
args = parser.parse_args()

run = onward.init()
torch.manual_seed(run.rank)
random.seed(run.rank)
model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 8)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
run.protect(model=model, optimizer=optimizer)

for step in run.steps(args.steps):
    with step:
        time.sleep(args.pace)
        loss = model(torch.randn(16, 32)).square().mean() + random.random()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if step.committed:
        print("committed", step.index, flush=True)

if args.digest:
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "sample_ids": []}
    state |= {"rng_torch": torch.get_rng_state(), "rng_python": random.getstate()}
    torch.save(state, f"{args.digest}.{run.rank}.pt")
