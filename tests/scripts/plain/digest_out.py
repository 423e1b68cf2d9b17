"""What every script here shares: its two flags, its data, its seeds, and the file with its final state."""

import argparse
import random

import torch
from torch.utils.data import TensorDataset


def arguments(description, steps=20):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--digest", metavar="FILE", help="write the final state of rank r to FILE.r.pt")
    return parser.parse_args()


def samples(count=512, width=16):
    """A small regression task, the same on every rank and in every run."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(count, width, generator=generator)
    return TensorDataset(x, torch.sin(x @ torch.randn(width, 1, generator=generator)))


def seed(rank):
    """Streams that differ from rank to rank; called after the model, which starts alike everywhere, is built."""
    torch.manual_seed(100 + rank)
    random.seed(100 + rank)


def write(file, rank, model, optimizer, **more):
    """The final state of this rank, for examples/digest.py. Does nothing without a file."""
    if file:
        state = {"model": model, "optimizer": optimizer, "sample_ids": [], **more}
        state |= {"rng_torch": torch.get_rng_state(), "rng_python": random.getstate()}
        torch.save(state, f"{file}.{rank}.pt")
