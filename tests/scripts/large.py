"""A job whose state is as large as one likes: parameters of so many megabytes, as much again for the optimizer."""

import argparse

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import onward

parser = argparse.ArgumentParser()
parser.add_argument("--mb", type=int, default=100)
parser.add_argument("--steps", type=int, default=50)
args = parser.parse_args()

run = onward.init()
torch.manual_seed(0)
width = int((args.mb * 250_000) ** 0.5)
model = DDP(nn.Linear(width, width, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
run.protect(model=model, optimizer=optimizer)

for step in run.steps(args.steps):
    with step:
        model(torch.randn(4, width)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if step.committed:
        print("committed", step.index, flush=True)
