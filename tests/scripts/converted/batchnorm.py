"""BatchNorm and dropout: a forward pass changes buffers and draws random numbers, differently on each rank."""

import torch
from digest_out import arguments, samples, seed, write
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

import onward


def train(model, optimizer, x, y):
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


args = arguments(__doc__)
run = onward.init()
rank = run.rank

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 1))
model = DDP(net, broadcast_buffers=False)  # each rank keeps statistics of its own: no replica has them
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
run.protect(model=model, optimizer=optimizer)
batches = run.batches(samples(), global_batch=64)
seed(rank)

for step in run.steps(args.steps):
    with step:
        for x, y in batches:
            loss = train(model, optimizer, x, y)
    if step.committed and rank == 0 and (step.index + 1) % 5 == 0:
        print(f"step {step.index + 1} loss {loss.item():.4f}", flush=True)

write(args.digest, rank, model.module.state_dict(), optimizer.state_dict())
