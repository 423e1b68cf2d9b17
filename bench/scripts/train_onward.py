"""The same under onward. The checkpoint is written just as often, and never needed."""

import os
import time

import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from work import Record, arguments, build, save, train

import onward
from onward.wire.page import Page

args = arguments()
run = onward.init()
time.sleep(args.setup_s)
model = DDP(build(args))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
run.protect(model=model, optimizer=optimizer)
if args.dir:
    run.checkpoint(every=10**6, dir=args.dir)  # only what is saved when nothing else helps
record = Record(args.out, run.rank)
page = Page(f"{os.path.dirname(os.environ['ONWARD_SOCKET'])}/process{os.environ['ONWARD_PROCESS']}.page")

for step in run.steps(args.steps):
    with step:
        train(model, optimizer, args, record.fail_if_told)
    if step.committed:
        record.committed(step.index, page.get("own_ns"))
        if run.rank == 0 and args.every and (step.index + 1) % args.every == 0:
            with run.section("checkpoint"):
                save(args, model, optimizer, step.index + 1)
