"""Mixed precision: bfloat16 autocast on the CPU, and a gradient scaler whose scale is part of the state."""

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
model = DDP(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
# So high that the first steps overflow and are skipped; it then grows every five steps, and overflows again.
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=5, enabled=True)
x, y = samples().tensors
seed(rank)

for step in range(args.steps):
    mine = (torch.arange(16) * world + rank + step * 16 * world) % len(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.mse_loss(model(x[mine]), y[mine], reduction="sum")
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if rank == 0 and (step + 1) % 5 == 0:
        print(f"step {step + 1} loss {loss.item():.4f} scale {scaler.get_scale():g}", flush=True)

write(args.digest, rank, model.module.state_dict(), optimizer.state_dict(), scaler=scaler.state_dict())
dist.destroy_process_group()
