"""A small job that notes its own threads, descriptors and memory, early and at the end."""

import argparse
import json
import os
import random

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import onward

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1500)
parser.add_argument("--digest")
args = parser.parse_args()


def footprint():
    with open("/proc/self/status") as f:
        fields = dict(line.split(":", 1) for line in f)
    fds = len(os.listdir("/proc/self/fd"))
    return {"threads": int(fields["Threads"]), "fds": fds, "rss_kb": int(fields["VmRSS"].split()[0])}


run = onward.init()
torch.manual_seed(run.rank)
random.seed(run.rank)
model = DDP(nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 8)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
run.protect(model=model, optimizer=optimizer)

early = None
for step in run.steps(args.steps):
    with step:
        loss = model(torch.randn(16, 32)).square().mean() + random.random()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if step.committed and step.index == 60:
        early = footprint()

if args.digest:
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "sample_ids": []}
    state |= {"rng_torch": torch.get_rng_state(), "rng_python": random.getstate()}
    torch.save(state, f"{args.digest}.{run.rank}.pt")
    with open(f"{args.digest}.{run.rank}.json", "w") as f:
        json.dump({"early": early, "late": footprint()}, f)
