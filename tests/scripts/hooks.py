"""DDP with a communication hook that keeps something from step to step, or with one of torch's own."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as DDP

import onward

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kind", choices=["power-sgd", "own", "unprotected", "built-in"], default="power-sgd")
parser.add_argument("--steps", type=int, default=24)
parser.add_argument("--digest", metavar="FILE")
args = parser.parse_args()

run = onward.init()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
left_out = {}


def rounded(left_out, bucket):
    """Gradients are sent in half precision; what that leaves out is added to the next."""
    gradients = bucket.buffer() + left_out.get(bucket.index(), 0)
    sent = gradients.half().float()
    left_out[bucket.index()] = gradients - sent
    return dist.all_reduce(sent / dist.get_world_size(), async_op=True).get_future().then(lambda f: f.value()[0])


if args.kind == "power-sgd":
    state = PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=4, min_compression_rate=0.5)
    left_out = state.error_dict
    model.register_comm_hook(state, powerSGD_hook)
elif args.kind == "built-in":
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
else:
    model.register_comm_hook(left_out, rounded)
run.protect(model=model, optimizer=optimizer, local={"left_out": left_out} if args.kind == "own" else None)

for step in run.steps(args.steps):
    with step:
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step.index * 97 + run.rank))
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).sin()).backward()
        optimizer.step()
        optimizer.zero_grad()

if args.digest:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "left_out": left_out}
    torch.save(state, f"{args.digest}.{run.rank}.pt")
