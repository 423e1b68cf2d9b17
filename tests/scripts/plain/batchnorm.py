"""BatchNorm and dropout: a forward pass changes buffers and draws random numbers, differently on each rank."""

import itertools

import torch
import torch.distributed as dist
from digest_out import arguments, samples, seed, write
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


def endless(loader):
    for epoch in itertools.count():
        loader.sampler.set_epoch(epoch)
        yield from loader


def train(model, optimizer, x, y):
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


args = arguments(__doc__)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 1))
model = DDP(net, broadcast_buffers=False)  # each rank keeps statistics of its own: no replica has them
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
dataset = samples()
loader = DataLoader(dataset, batch_size=64 // world, sampler=DistributedSampler(dataset), drop_last=True)
seed(rank)
batches = endless(loader)

for step in range(args.steps):
    x, y = next(batches)
    loss = train(model, optimizer, x, y)
    if rank == 0 and (step + 1) % 5 == 0:
        print(f"step {step + 1} loss {loss.item():.4f}", flush=True)

write(args.digest, rank, model.module.state_dict(), optimizer.state_dict())
dist.destroy_process_group()
