"""An evaluation with collectives of its own every five steps: an all-reduce, an all-gather and a broadcast."""

import torch
import torch.distributed as dist
from digest_out import arguments, samples, seed, write
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset

import onward


def train(model, optimizer, x, y):
    model.train()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


@torch.no_grad()
def evaluate(model, dataset, rank, world):
    """The mean error over all ranks, and the rank with the worst share of the dataset."""
    model.eval()
    error = torch.zeros(1)
    for x, y in DataLoader(Subset(dataset, range(rank, len(dataset), world)), batch_size=32):
        error += F.mse_loss(model.module(x), y, reduction="sum")
    shares = [torch.zeros(1) for _ in range(world)]
    dist.all_gather(shares, error)
    dist.all_reduce(error)
    worst = torch.stack(shares).argmax()
    dist.broadcast(worst, src=0)
    return error.item() / len(dataset), worst.item()


args = arguments(__doc__)
run = onward.init()
rank, world = run.rank, run.world_size

torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
dataset = samples()
training, held_out = Subset(dataset, range(384)), Subset(dataset, range(384, 512))
run.protect(model=model, optimizer=optimizer)
batches = run.batches(training, global_batch=64)
seed(rank)

for step in run.steps(args.steps):
    with step:
        for x, y in batches:
            loss = train(model, optimizer, x, y)
    if step.committed and (step.index + 1) % 5 == 0:
        with run.section("evaluate"):
            error, worst = evaluate(model, held_out, rank, world)
        if rank == 0:
            print(f"step {step.index + 1} loss {loss.item():.4f} error {error:.4f} worst rank {worst}", flush=True)

write(args.digest, rank, model.module.state_dict(), optimizer.state_dict())
