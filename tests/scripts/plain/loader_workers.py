"""Batches from a DataLoader with two worker processes on each rank, over several epochs."""

import itertools

import torch
import torch.distributed as dist
from digest_out import arguments, samples, seed, write
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Numbered(Dataset):
    """The samples, each with its number, so that the script can tell which ones it has seen."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, i):
        return i, *self.dataset[i]


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
rank = dist.get_rank()

torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
dataset = Numbered(samples())
sampler = DistributedSampler(dataset, seed=3)
loader = DataLoader(dataset, batch_size=16, sampler=sampler, num_workers=2, drop_last=True)
seed(rank)
ids = []
batches = endless(loader)

for step in range(args.steps):
    i, x, y = next(batches)
    ids += i.tolist()
    loss = train(model, optimizer, x, y)
    if rank == 0 and (step + 1) % 5 == 0:
        print(f"step {step + 1} loss {loss.item():.4f}", flush=True)

write(args.digest, rank, model.module.state_dict(), optimizer.state_dict(), sample_ids=ids)
dist.destroy_process_group()
