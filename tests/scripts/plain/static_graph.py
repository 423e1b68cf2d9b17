"""A layer used three times in a forward pass with activation checkpointing: static_graph=True."""

import torch
import torch.distributed as dist
from digest_out import arguments, samples, seed, write
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.again, self.last = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 1)
        self.drop = nn.Dropout(0.1)

    def turn(self, hidden):
        return hidden + self.drop(torch.tanh(self.again(hidden)))

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(3):
            hidden = checkpoint(self.turn, hidden, use_reentrant=False)
        return self.last(hidden)


args = arguments(__doc__)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
model = DDP(Recurrent(), static_graph=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = samples().tensors
seed(rank)

for step in range(args.steps):
    mine = (torch.arange(16) * world + rank + step * 16 * world) % len(x)
    loss = F.mse_loss(model(x[mine]), y[mine])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0 and (step + 1) % 5 == 0:
        print(f"step {step + 1} loss {loss.item():.4f}", flush=True)

write(args.digest, rank, model.module.state_dict(), optimizer.state_dict())
dist.destroy_process_group()
