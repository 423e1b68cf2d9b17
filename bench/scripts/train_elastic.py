"""The same for a world that may shrink: the data is dealt by the library, in micro-batches."""

import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from work import Record, arguments, build

import onward

args = arguments()
run = onward.init()
model = DDP(build(args))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
run.protect(model=model, optimizer=optimizer)
record = Record(args.out, run.rank)
data = torch.utils.data.TensorDataset(torch.randn(48 * args.batch, args.width))
batches = run.batches(data, global_batch=12 * args.batch, micro_batch=args.batch)

for step in run.steps(args.steps):
    with step:
        for (x,) in batches:
            (model(x).square().mean() / batches.per_step).backward()
        optimizer.step()
        optimizer.zero_grad()
    if step.committed:
        record.committed(step.index)
