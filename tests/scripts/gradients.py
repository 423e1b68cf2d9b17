"""A job that can go on with fewer ranks, and shows of every step the parameters, the samples and the gradient."""

import argparse
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import onward

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--pace", type=float, default=0.05)
parser.add_argument("--digest", required=True)
args = parser.parse_args()

run = onward.init()
torch.manual_seed(5)
x = torch.randn(300, 10)
data = torch.utils.data.TensorDataset(x, torch.sin(x.sum(1, keepdim=True)))
net = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.LayerNorm(24), nn.Linear(24, 1))
model = DDP(net)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
run.protect(model=model, optimizer=optimizer)
batches = run.batches(data, global_batch=32, micro_batch=2)  # 16 micro-batches: three ranks have 6, 5 and 5

shown = {}
for step in run.steps(args.steps):
    with step:
        time.sleep(args.pace)
        at, ids = [p.detach().clone() for p in net.parameters()], []
        for a, b in batches:
            ids += batches.ids
            loss = nn.functional.mse_loss(model(a), b) / batches.per_step
            loss.backward()
        gradient = [p.grad.detach().clone() for p in net.parameters()]
        optimizer.step()
        optimizer.zero_grad()
    if step.committed:
        shown[step.index] = {"at": at, "gradient": gradient}
        print("counted", step.index, *ids, flush=True)

torch.save({"shown": shown, "data": data.tensors}, f"{args.digest}.{run.rank}.pt")
