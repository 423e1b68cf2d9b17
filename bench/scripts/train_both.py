"""Plain DDP and onward in the same processes, a few steps each in turn: what onward adds, whatever the machine does.

The plain steps have their own model and their own gloo group, and run in a section between two steps of onward. The
first step of a block is not counted: it pays for the change (unless the blocks are single steps). Records carry the
nanoseconds of the step, on the clock and of the process's CPU time; plain steps are numbered -1.
"""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from work import Record, arguments, build, train

import onward

args = arguments()
run = onward.init()
plain_model = DDP(build(args), process_group=dist.new_group(backend="gloo"))
plain_optimizer = torch.optim.AdamW(plain_model.parameters(), lr=1e-4)
model = DDP(build(args))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
run.protect(model=model, optimizer=optimizer)
record = Record(args.out, run.rank)


def clocks():
    return time.perf_counter_ns(), time.process_time_ns()


def note(step, begun):
    now = clocks()
    record.committed(step, now[0] - begun[0], now[1] - begun[1])


def plain_block():
    begun = clocks()
    for i in range(args.block):
        train(plain_model, plain_optimizer, args, record.fail_if_told)
        if i or args.block == 1:
            note(-1, begun)
        begun = clocks()


begun = clocks()
for step in run.steps(args.steps):
    with step:
        train(model, optimizer, args, record.fail_if_told)
    if step.index % args.block or args.block == 1:
        note(step.index, begun)
    if (step.index + 1) % args.block == 0:
        with run.section("plain"):
            plain_block()
    begun = clocks()
