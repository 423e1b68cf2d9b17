"""A job with everything that a process must get right to follow another: random numbers in blocks and between them,
running statistics, two optimizers, a DataLoader, settings that change, collectives between steps and in the set-up."""

import argparse
import contextlib
import os
import random
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

import onward

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--pace", type=float, default=0.1, help="seconds a step takes at least")
parser.add_argument("--digest")
parser.add_argument("--mark", help="a file: the first process that follows makes it, and takes a second for that block")
parser.add_argument("--then", choices=["follower-dies", "followed-dies"], help="what happens when the mark is there")
parser.add_argument("--outside", action="store_true", help="change the learning rate outside the block")
args = parser.parse_args()

run = onward.init()
told = [4711 if run.rank == 0 else None]
dist.broadcast_object_list(told, src=0)  # only who was there knows it, or is told
torch.manual_seed(told[0] + run.rank)
random.seed(run.rank)
torch.set_num_threads(1)  # sums depend on it, and it is not the same by itself with one process on a node and with two
with contextlib.suppress(ImportError):  # the positions of a DataLoader hold numpy's stream, too
    import numpy

    numpy.random.seed(run.rank)
layers = [nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 8)]
model = DDP(nn.Sequential(*layers), forward_sync_buffers=False)
first = torch.optim.AdamW(model.module[0].parameters(), lr=1e-3)
second = torch.optim.SGD([p for layer in model.module[1:] for p in layer.parameters()], lr=1e-2, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(second, 7, 0.9)
data = TensorDataset(torch.randn(999, 32, generator=torch.Generator().manual_seed(run.rank)))
batches = run.batches(DataLoader(data, batch_size=16, shuffle=True))
run.protect(model=model, first=first, second=second, schedule=schedule)

blocks, counted = 0, False  # of this process: run, and any that counted


def hurt() -> None:
    """A stand-in rehearses two blocks; the third is one beside the rank that it follows."""
    mark = Path(args.mark)
    if run.incarnation != 1 and not counted and blocks == 3 and not mark.exists():
        mark.touch()
        if args.then == "follower-dies":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1.0)  # the one that it follows gets ahead, or dies, while it is here
    if run.incarnation == 1 and run.rank == 1 and args.then == "followed-dies" and mark.exists():
        os.kill(os.getpid(), signal.SIGKILL)


for step in run.steps(args.steps):
    with step:
        blocks += 1
        if args.mark:
            hurt()
        time.sleep(args.pace)
        (x,) = next(batches)
        loss = model(x + torch.rand(1)).square().mean() + random.random()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        first.step()
        noise = torch.randn(1)  # drawn between two updates
        second.step()
        if not args.outside:
            schedule.step()
        first.zero_grad()
        second.zero_grad()
        dist.all_reduce(noise)
    counted = counted or step.committed
    if step.committed:
        if args.outside:
            schedule.step()
        print("committed", step.index, flush=True)
        if step.index % 5 == 4:
            with run.section("evaluation"):
                found = torch.rand(3)
                dist.all_reduce(found)

if args.digest:
    state = {"model": model.module.state_dict(), "first": first.state_dict(), "second": second.state_dict()}
    state |= {"optimizer": second.state_dict(), "schedule": schedule.state_dict(), "sample_ids": [batches.position]}
    state |= {"rng_torch": torch.get_rng_state(), "rng_python": random.getstate()}
    torch.save(state, f"{args.digest}.{run.rank}.pt")
