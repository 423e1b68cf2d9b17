"""Batches from a DataLoader with two worker processes on each rank, over several epochs."""

from array import array

import torch
from digest_out import arguments, samples, seed, write
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import onward


class Numbered(Dataset):
    """The samples, each with its number, so that the script can tell which ones it has seen."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, i):
        return i, *self.dataset[i]


class SampleIds:
    """Which samples this rank has trained on; kept as protected state, so that a redo does not count one twice."""

    def __init__(self):
        self.seen = array("q")

    def state_dict(self):
        return {"seen": self.seen.tobytes()}  # bytes: cheap to keep at every step, however long it gets

    def load_state_dict(self, state):
        self.seen = array("q", state["seen"])


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
model = DDP(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
dataset = Numbered(samples())
sampler = DistributedSampler(dataset, seed=3)
loader = DataLoader(dataset, batch_size=16, sampler=sampler, num_workers=2, drop_last=True)
seed(rank)
ids = SampleIds()
run.protect(model=model, optimizer=optimizer, local={"ids": ids})
batches = run.batches(loader)

for step in run.steps(args.steps):
    with step:
        i, x, y = next(batches)
        ids.seen.extend(i.tolist())
        loss = train(model, optimizer, x, y)
    if step.committed and rank == 0 and (step.index + 1) % 5 == 0:
        print(f"step {step.index + 1} loss {loss.item():.4f}", flush=True)

write(args.digest, rank, model.module.state_dict(), optimizer.state_dict(), sample_ids=ids.seen.tolist())
