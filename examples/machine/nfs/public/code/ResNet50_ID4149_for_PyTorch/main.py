"""Stands in for the ResNet-50 of the sample: the same command line, a small network, pictures made of noise.

onward run main.py --arch=resnet50 --epochs=90 --batch-size=4096
"""

import argparse

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import TensorDataset

import onward

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", help="not looked at: pictures are made")
parser.add_argument("--arch", default="resnet50", help="not looked at: the network is small")
parser.add_argument("--epochs", type=int, default=90)
parser.add_argument("--batch-size", type=int, default=4096, help="over all ranks; here 1/64 of it")
parser.add_argument("--lr", type=float, default=1.6)
parser.add_argument("--seed", type=int, default=49)
args, rest = parser.parse_known_args()  # the others are about hardware: --amp, -j, --dist-backend, ...

run = onward.init()
torch.manual_seed(args.seed)
batch = max(args.batch_size // 64, run.world_size)
pictures = torch.randn(4 * batch, 3, 16, 16)
labels = (pictures.mean((1, 2, 3)) > 0).long()
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 2))
model = DDP(model.to(run.device))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr / 100, momentum=0.9)
run.protect(model=model, optimizer=optimizer)
batches = run.batches(TensorDataset(pictures, labels), global_batch=batch, seed=args.seed)

for step in run.steps(args.epochs):
    with step:
        for x, y in batches:
            loss = nn.functional.cross_entropy(model(x.to(run.device)), y.to(run.device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    if step.committed:
        run.log(loss=loss.item())
    if step.committed and run.rank == 0 and (step.index + 1) % 10 == 0:
        print(f"epoch {step.index + 1} of {args.epochs} loss {loss.item():.4f}", flush=True)
