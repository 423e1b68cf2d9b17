"""Steps at an even pace on a CUDA device; for some of them the kernels of rank 1 are slow."""

import argparse
import os

# NCCL refuses two ranks on one GPU of one host. With a host name each they take each other for remote, and use sockets.
os.environ.setdefault("NCCL_HOSTID", f"rank{os.environ['RANK']}")
os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")

import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import onward

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=220)
parser.add_argument("--slow", default="0:0:0", help="FROM:TO:SECONDS, by kernels of rank 1")
parser.add_argument("--backend")
parser.add_argument("--digest")
args = parser.parse_args()
first, last, seconds = (float(word) for word in args.slow.split(":"))

run = onward.init(backend=args.backend)
cycles = 0
if last:  # a kernel that counts its device's cycles: how many there are to a second
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()
    begun = time.monotonic()
    torch.cuda._sleep(50_000_000)
    torch.cuda.synchronize()
    cycles = int(50_000_000 / (time.monotonic() - begun) * seconds)
model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(run.device))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
run.protect(model=model, optimizer=optimizer)

for step in run.steps(args.steps):
    with step:
        time.sleep(0.02)
        if run.rank == 1 and first <= step.index < last:
            torch.cuda._sleep(cycles)
        loss = model(torch.randn(32, 64, device=run.device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
