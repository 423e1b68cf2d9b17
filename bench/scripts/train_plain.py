"""Plain DDP for torchrun and the like: a checkpoint every few steps, from which it goes on when started again."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from work import Record, arguments, build, save, train

args = arguments()
dist.init_process_group("gloo")
rank = dist.get_rank()
time.sleep(args.setup_s)
model = DDP(build(args))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
first = 0
if args.every and (args.out / "checkpoint.pt").exists():
    state = torch.load(args.out / "checkpoint.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]
record = Record(args.out, rank)

for step in range(first, args.steps):
    train(model, optimizer, args, record.fail_if_told)
    record.committed(step)
    if rank == 0 and args.every and (step + 1) % args.every == 0:
        save(args, model, optimizer, step + 1)
dist.destroy_process_group()
