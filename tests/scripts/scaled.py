"""Mixed precision by the book: autocast, GradScaler, unscale and clip."""

import argparse

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import onward

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--clip", action="store_true")
parser.add_argument("--digest")
args = parser.parse_args()

run = onward.init()
torch.manual_seed(run.rank)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
model = DDP(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)
run.protect(model=model, optimizer=optimizer, scaler=scaler)

for step in run.steps(args.steps):
    with step:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(0, 4, (16,)))
        scaler.scale(loss).backward()
        if args.clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

if args.digest:
    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
    torch.save(state | {"rng": torch.get_rng_state()}, f"{args.digest}.{run.rank}.pt")
