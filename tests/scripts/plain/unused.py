"""A model of which each step uses one of two branches, not the same on all ranks: find_unused_parameters=True."""

import torch
import torch.distributed as dist
from digest_out import arguments, samples, seed, write
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.branches = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(2))
        self.last = nn.Linear(32, 1)

    def forward(self, x, branch):
        return self.last(self.branches[branch](F.relu(self.first(x))))


args = arguments(__doc__)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
model = DDP(Branches(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = samples().tensors
seed(rank)

for step in range(args.steps):
    mine = (torch.arange(16) * world + rank + step * 16 * world) % len(x)
    # Two steps in four all ranks agree, so that one branch is used by none of them.
    branch = (step // 2) % 2 if step % 4 < 2 else (step + rank) % 2
    loss = F.mse_loss(model(x[mine], branch), y[mine])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0 and (step + 1) % 5 == 0:
        print(f"step {step + 1} loss {loss.item():.4f}", flush=True)

write(args.digest, rank, model.module.state_dict(), optimizer.state_dict())
dist.destroy_process_group()
