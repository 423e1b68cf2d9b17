"""Each rank writes a line after every step that counts: nobody may miss one, nobody may write one twice."""

import argparse
import random

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import onward

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--noise", action="store_true", help="draw after the update, so that every step is a careful one")
parser.add_argument("--digest", required=True)
args = parser.parse_args()

run = onward.init()
torch.manual_seed(run.rank)
random.seed(run.rank)
model = DDP(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
batches = run.batches(list(range(1024)), global_batch=16)
drawn = {"ids": []}
run.protect(model=model, optimizer=optimizer, local={"drawn": drawn})

for step in run.steps(args.steps):
    with step:
        for ids in batches:
            loss = model(torch.randn(len(ids), 16)).square().mean()
            loss.backward()
            drawn["ids"] += ids.tolist()
        optimizer.step()
        optimizer.zero_grad()
        if args.noise:
            torch.rand(3)
    if step.committed:
        with open(f"{args.digest}.{run.rank}.ledger", "a") as f:
            f.write(f"{step.index} {loss.item()!r}\n")

state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "sample_ids": drawn["ids"]}
state |= {"rng_torch": torch.get_rng_state(), "rng_python": random.getstate()}
torch.save(state, f"{args.digest}.{run.rank}.pt")
