"""A loop with checkpoints: random streams, buffers, two kinds of batches and a ledger of what it did."""

import argparse
import os
import random
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import onward

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--every", type=int, default=10)
parser.add_argument("--dir", default="")
parser.add_argument("--keep", type=int, default=3)
parser.add_argument("--fresh", action="store_true")
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--step-s", type=float, default=0.0)
parser.add_argument("--wait", action="store_true", help="before each checkpoint, until the last one is on disk")
parser.add_argument("--between", action="store_true", help="draw between the steps, and exchange something")
parser.add_argument("--digest", default="")
args = parser.parse_args()

run = onward.init()
torch.manual_seed(run.rank)
random.seed(run.rank)
layers = [nn.Linear(16, args.width), nn.BatchNorm1d(args.width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(args.width, 4)]
model = DDP(nn.Sequential(*layers), bucket_cap_mb=1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.9)
batches = run.batches(list(range(1024)), global_batch=4 * run.world_size)
stream = run.batches([torch.full((2,), float(i)) for i in range(11)])
drawn = {"ids": []}
run.protect(model=model, optimizer=optimizer, scheduler=scheduler, local={"drawn": drawn})
if args.dir:
    run.checkpoint(every=args.every, dir=args.dir, keep=args.keep, resume=not args.fresh)

for step in run.steps(args.steps):
    with step:
        for ids in batches:
            loss = model(torch.randn(len(ids), 16) + next(stream).mean()).square().mean()
            loss.backward()
            drawn["ids"] += ids.tolist()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        if args.step_s:
            time.sleep(args.step_s)
    if step.committed:
        if args.digest:
            with open(f"{args.digest}.{run.rank}.ledger", "a") as f:
                f.write(f"{step.index} {loss.item()!r} {os.getpid()}\n")
        last = step.index // args.every * args.every
        if args.wait and run.incarnation == 1 and last and step.index % args.every == args.every - 1:
            with run.section("wait"):
                while not os.path.exists(f"{args.dir}/step-{last:08d}"):
                    time.sleep(0.01)  # the test bounds the whole run
        if args.between and step.index % 3 == 0:
            noise = torch.rand(2)
            torch.distributed.all_reduce(noise)

if args.digest:
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "sample_ids": drawn["ids"]}
    state |= {"rng_torch": torch.get_rng_state(), "rng_python": random.getstate()}
    state |= {"scheduler": scheduler.state_dict()}
    torch.save(state, f"{args.digest}.{run.rank}.pt")
