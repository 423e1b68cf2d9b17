"""The smallest DDP script: every rank learns the same linear teacher from its share of the samples.

    onward run --nproc_per_node 4 examples/ddp_min.py
"""

import argparse
import random

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import TensorDataset

import onward

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--digest", metavar="FILE", help="write the final state of rank r to FILE.r.pt")
args = parser.parse_args()


def train(model, optimizer, x, y):
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


run = onward.init()

torch.manual_seed(0)
random.seed(0)
x = torch.randn(4096, 16)
dataset = TensorDataset(x, x @ torch.randn(16, 1))
model = DDP(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run.protect(model=model, optimizer=optimizer)
batches = run.batches(dataset, global_batch=64)

for step in run.steps(args.steps):
    with step:
        for x, y in batches:
            loss = train(model, optimizer, x, y)
    if step.committed and run.rank == 0 and (step.index + 1) % 10 == 0:
        print(f"step {step.index + 1} loss {loss.item():.4f}", flush=True)

if args.digest:
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "sample_ids": []}
    state |= {"rng_torch": torch.get_rng_state(), "rng_python": random.getstate()}
    torch.save(state, f"{args.digest}.{run.rank}.pt")
