"""A learning-rate scheduler stepped outside the loop over steps, after every epoch of five."""

import torch
import torch.distributed as dist
from digest_out import arguments, samples, seed, write
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

args = arguments(__doc__)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.8)
x, y = samples().tensors
seed(rank)

for start in range(0, args.steps, 5):
    for step in range(start, min(start + 5, args.steps)):
        mine = (torch.arange(16) * world + rank + step * 16 * world) % len(x)
        loss = F.mse_loss(model(x[mine]), y[mine])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    scheduler.step()
    if rank == 0:
        print(f"step {step + 1} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.5f}", flush=True)

write(args.digest, rank, model.module.state_dict(), optimizer.state_dict(), scheduler=scheduler.state_dict())
dist.destroy_process_group()
