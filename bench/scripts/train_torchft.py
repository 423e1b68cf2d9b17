"""The same under torchft: one replica group for each rank; who dies comes back by its state from another.

Seconds that torchft leaves to its user are short here, so that it shows what it can do. The batch of a step shrinks
while one is missing.
"""

import os
import time
from datetime import timedelta

import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from work import Record, arguments, build, save

args = arguments()
rank = int(os.environ["REPLICA_GROUP_ID"])
time.sleep(args.setup_s)
plain = build(args)


def state():
    return {"model": plain.state_dict(), "optimizer": optimizer.state_dict()}


def load(found):
    plain.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])


manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
    min_replica_size=2,
    load_state_dict=load,
    state_dict=state,
    replica_id=f"rank{rank}",
    timeout=timedelta(seconds=30),
)
model = DistributedDataParallel(manager, plain)
optimizer = Optimizer(manager, torch.optim.AdamW(plain.parameters(), lr=1e-4))
record = Record(args.out, rank)

while (step := manager.current_step()) < args.steps:
    optimizer.zero_grad()
    loss = model(torch.randn(args.batch, args.width)).square().mean()
    record.fail_if_told()
    loss.backward()
    optimizer.step()  # counts, or not
    if manager.current_step() > step:
        record.committed(manager.current_step() - 1)
        if rank == 0 and args.every and (step + 1) % args.every == 0:
            save(args, plain, optimizer, step + 1)
