"""A job that can go on with fewer ranks. It says which samples counted in which step."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import onward

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--pace", type=float, default=0.05, help="seconds a step takes at least")
parser.add_argument("--digest")
parser.add_argument("--dir", help="save every ten steps, there")
parser.add_argument("--exchange", type=int, help="in the set-up, where this rank tells the others something")
args = parser.parse_args()

run = onward.init()
if args.exchange is not None:
    told, ones = [time.time_ns() if run.rank == args.exchange else None], torch.zeros(run.world_size, dtype=torch.long)
    dist.broadcast_object_list(told, src=args.exchange)
    dist.all_gather_into_tensor(ones, torch.ones(1, dtype=torch.long))
    dist.new_group(range(run.world_size))
    print("told", dist.get_rank(), dist.get_world_size(), int(ones.sum()), *told, flush=True)
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(960, 16), torch.randn(960, 4))
model = DDP(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
run.protect(model=model, optimizer=optimizer, schedule=schedule)
if args.dir:
    run.checkpoint(every=10, dir=args.dir, keep=100)
batches = run.batches(data, global_batch=48, micro_batch=4)

for step in run.steps(args.steps):
    with step:
        time.sleep(args.pace)
        drawn = []
        for x, y in batches:
            drawn += batches.ids
            loss = nn.functional.mse_loss(model(x), y) / batches.per_step
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    if step.committed:
        print("counted", step.index, *drawn, flush=True)

if args.digest:
    torch.save({"model": model.module.state_dict(), "lr": schedule.get_last_lr()}, f"{args.digest}.{run.rank}.pt")
