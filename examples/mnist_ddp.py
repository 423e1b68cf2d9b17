"""Train a small CNN on a folder of PNG files per class, with DDP, and validate after every epoch.

    python examples/make_mnist.py --out data/mnist_png
    onward run --nproc_per_node 4 examples/mnist_ddp.py --num_epochs 5 \\
        --training_data data/mnist_png/training/ --validation_data data/mnist_png/testing/
"""

import argparse
import random
from pathlib import Path

import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Subset

import onward

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--num_epochs", type=int, default=5)
parser.add_argument("--training_data", type=Path, required=True, metavar="DIR", help="holds DIR/<class>/<name>.png")
parser.add_argument("--validation_data", type=Path, required=True, metavar="DIR")
parser.add_argument("--batch_size", type=int, default=32, help="images in a step, over all ranks together")
parser.add_argument("--lr", type=float, default=2e-3)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--limit", type=int, help="use at most this many images of each set, spread over its classes")
parser.add_argument("--digest", metavar="FILE", help="write the final state of rank r to FILE.r.pt")
args = parser.parse_args()


class PngFolder(Dataset):
    def __init__(self, folder, limit=None):
        self.classes = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
        labelled = [(label, sorted((folder / name).glob("*.png"))) for label, name in enumerate(self.classes)]
        files = [(path, label) for label, paths in labelled for path in paths]
        if not files:
            parser.error(f"{folder}: no <class>/<name>.png there; examples/make_mnist.py makes such a folder")
        self.files = files[:: max(1, len(files) // limit)][:limit] if limit else files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        path, label = self.files[i]
        with Image.open(path) as image:
            pixels = torch.frombuffer(bytearray(image.convert("L").resize((28, 28)).tobytes()), dtype=torch.uint8)
        return pixels.view(1, 28, 28).float() / 255, label


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classify = nn.Sequential(nn.Flatten(), nn.Dropout(0.25), nn.Linear(32 * 7 * 7, classes))

    def forward(self, x):
        return self.classify(self.features(x))


def train(model, optimizer, x, y):
    model.train()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


@torch.no_grad()
def validate(model, dataset, rank, world, device):
    """The part of the dataset that all ranks together got right; each looks at its own share."""
    model.eval()
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for x, y in DataLoader(Subset(dataset, range(rank, len(dataset), world)), batch_size=256):
        # The bare module: through the wrapper every forward would be a collective, and shares differ in length.
        correct += (model.module(x.to(device)).argmax(dim=1) == y.to(device)).sum()
    dist.all_reduce(correct)
    return correct.item() / len(dataset)


run = onward.init()
rank, world, device = run.rank, run.world_size, run.device

training, validation = PngFolder(args.training_data, args.limit), PngFolder(args.validation_data, args.limit)
if training.classes != validation.classes:
    parser.error(f"classes differ: {training.classes} for training, {validation.classes} for validation")
if len(training) < args.batch_size:
    parser.error(f"{args.training_data}: {len(training)} images, fewer than one batch of {args.batch_size}")

torch.manual_seed(args.seed)
model = DDP(Net(len(training.classes)).to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
torch.manual_seed(args.seed + 1 + rank)  # dropout differs from rank to rank
random.seed(args.seed + 1 + rank)

run.protect(model=model, optimizer=optimizer)
batches = run.batches(training, global_batch=args.batch_size, seed=args.seed)
epoch_steps = len(batches)

for step in run.steps(args.num_epochs * epoch_steps):
    with step:
        for x, y in batches:
            loss = train(model, optimizer, x.to(device), y.to(device))
    if step.committed and (step.index + 1) % epoch_steps == 0:
        with run.section("validate"):
            accuracy = validate(model, validation, rank, world, device)
        if rank == 0:
            print(f"epoch {(step.index + 1) // epoch_steps} loss {loss.item():.4f} accuracy {accuracy:.4f}", flush=True)

if args.digest:
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "sample_ids": []}
    state |= {"rng_torch": torch.get_rng_state(), "rng_python": random.getstate()}
    torch.save(state, f"{args.digest}.{rank}.pt")
