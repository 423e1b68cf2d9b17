"""What moves with the steps is changed after the block, as most scripts have it; and ranks die just there.

`--die RANK:STEP:MOMENT` ends that rank once: in the `block` or at its `end`, `before` the schedule was stepped after
it, with it `stepped`, or in the collective of an `evaluation` between the two.
"""

import argparse
import os
import random
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import onward

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--die", action="append", default=[])
parser.add_argument("--evaluate", type=int, default=0, metavar="N", help="every N steps")
parser.add_argument("--unasked", action="store_true", help="do not ask whether the step counts")
parser.add_argument("--digest", metavar="FILE")
args = parser.parse_args()


def here(moment, step):
    spec = f"{run.rank}:{step.index}:{moment}"
    if spec in args.die and not os.path.exists(f"{args.digest}.{spec}"):
        open(f"{args.digest}.{spec}", "x").close()
        os.kill(os.getpid(), signal.SIGKILL)


run = onward.init()
torch.manual_seed(0)
random.seed(0)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
seen = {"steps": 0, "rates": [], "mean": torch.zeros(3), "loss": 0.0}
run.protect(model=model, optimizer=optimizer, schedule=schedule, seen=seen)
torch.manual_seed(run.rank)

for step in run.steps(args.steps):
    with step:
        x = torch.randn(16, 8)
        here("block", step)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        total = loss.detach().clone()
        dist.all_reduce(total)
        optimizer.step()
        optimizer.zero_grad()
        here("end", step)
    if step.committed or args.unasked:
        here("before", step)
        seen["steps"] += 1
        seen["rates"].append(schedule.get_last_lr()[0])
        seen["mean"] += seen["steps"]
        if args.evaluate and seen["steps"] % args.evaluate == 0:
            here("evaluation", step)
            score = torch.full((1,), float(run.rank))
            dist.all_reduce(score)
            seen["steps"] += int(score) * 0
        elif not args.evaluate:
            seen["loss"] += float(total)
        schedule.step()
        here("stepped", step)

if args.digest:
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "sample_ids": []}
    state |= {"schedule": schedule.state_dict(), "seen": seen}
    state |= {"rng_torch": torch.get_rng_state(), "rng_python": random.getstate()}
    torch.save(state, f"{args.digest}.{run.rank}.pt")
