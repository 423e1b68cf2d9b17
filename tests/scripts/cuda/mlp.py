"""A small network with dropout and BatchNorm on a CUDA device, with deterministic kernels."""

import argparse
import os
import random

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# NCCL refuses two ranks on one GPU of one host. With a host name each they take each other for remote, and use sockets.
os.environ.setdefault("NCCL_HOSTID", f"rank{os.environ['RANK']}")
os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import onward

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--digest")
parser.add_argument("--backend")
parser.add_argument("--look", action="store_true", help="read a number that the gradients give, before the update")
args = parser.parse_args()

run = onward.init(backend=args.backend)
assert run.device.type == "cuda"
torch.use_deterministic_algorithms(True)
torch.manual_seed(run.rank)
random.seed(run.rank)

net = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10))
model = DDP(net.to(run.device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
run.protect(model=model, optimizer=optimizer)

for step in run.steps(args.steps):
    with step:
        x = torch.randn(32, 64, device=run.device)
        y = torch.randint(0, 10, (32,), device=run.device)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if args.look and nn.utils.clip_grad_norm_(model.parameters(), 1.0).item() < 0:
            raise ValueError("a norm cannot be negative")
        optimizer.step()
        optimizer.zero_grad()
    if step.committed and step.index % 10 == 5:
        # Collectives between steps, on tensors of both kinds.
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        count = torch.ones(1)
        dist.all_reduce(count)
        seen = [None] * run.world_size
        dist.all_gather_object(seen, (run.rank, step.index))
        dist.barrier()
        assert seen == [(r, step.index) for r in range(run.world_size)], seen
        assert count.item() == run.world_size
        if run.rank == 0:
            print(f"step {step.index} loss {mean.item() / run.world_size:.4f}", flush=True)

if args.digest:
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
    state |= {"rng_torch": torch.get_rng_state(), "rng_cuda": torch.cuda.get_rng_state()}
    state |= {"rng_python": random.getstate(), "sample_ids": []}
    torch.save(state, f"{args.digest}.{run.rank}.pt")
