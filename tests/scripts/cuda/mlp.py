"""A small network with dropout and BatchNorm on a CUDA device, with deterministic kernels."""

import argparse
import os
import random

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import onward

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--digest")
args = parser.parse_args()

run = onward.init()
assert run.device.type == "cuda"
torch.use_deterministic_algorithms(True)
torch.manual_seed(run.rank)
random.seed(run.rank)

net = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10))
model = DDP(net.to(run.device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
run.protect(model=model, optimizer=optimizer)

for step in run.steps(args.steps):
    with step:
        x = torch.randn(32, 64, device=run.device)
        y = torch.randint(0, 10, (32,), device=run.device)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if step.committed and run.rank == 0 and step.index % 10 == 0:
        print(f"step {step.index} loss {loss.item():.4f}", flush=True)

if args.digest:
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
    state |= {"rng_torch": torch.get_rng_state(), "rng_cuda": torch.cuda.get_rng_state()}
    state |= {"rng_python": random.getstate(), "sample_ids": []}
    torch.save(state, f"{args.digest}.{run.rank}.pt")
