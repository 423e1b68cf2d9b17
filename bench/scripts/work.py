"""What the training scripts of the bench share: arguments, model, one step, and the record that the bench reads."""

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn

RETRYABLE = "[gloo] Connection closed by peer (raised by the bench)"


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="directory of the records, flags and the checkpoint")
    parser.add_argument("--steps", type=int, default=10**6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128, help="samples of one rank")
    parser.add_argument("--setup_s", type=float, default=0.0, help="stands for loading data, building a tokenizer, ...")
    parser.add_argument("--every", type=int, default=0, help="steps between checkpoints; 0: none")
    parser.add_argument("--dir", help="train_onward: where its own checkpoints go")
    parser.add_argument("--block", type=int, default=8, help="train_both: steps of one kind in a row")
    return parser.parse_args()


def build(args):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(args.width, args.width, bias=False), nn.ReLU()) for _ in range(args.layers)]
    return nn.Sequential(*blocks)


def train(model, optimizer, args, fault=lambda: None):
    """One step. `fault` is called between forward and backward: peers are then on their way into the all-reduce."""
    x = torch.randn(args.batch, args.width)
    loss = model(x).square().mean()
    fault()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def save(args, model, optimizer, step):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, args.out / "new.pt")
    os.replace(args.out / "new.pt", args.out / "checkpoint.pt")


class Record:
    """One line for each committed step: when (monotonic clock), which, by whom, and two numbers of the script's."""

    def __init__(self, out, rank):
        self._out, self._rank = out, rank
        self._fd = os.open(out / f"rank{rank}.steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._flag = out / f"raise.{os.getpid()}"

    def committed(self, step, note_ns=0, cpu_ns=0):
        os.write(self._fd, b"%.6f %d %d %d %d\n" % (time.monotonic(), step, os.getpid(), note_ns, cpu_ns))

    def fail_if_told(self):
        """Raise a retryable error, once, when the bench has put a flag with our pid."""
        try:
            os.rename(self._flag, self._out / f"raised.{self._rank}")
        except FileNotFoundError:
            return
        (self._out / f"raised.{self._rank}").write_text(f"{time.monotonic():.6f}")
        raise RuntimeError(RETRYABLE)
