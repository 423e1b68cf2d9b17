"""A job with state of its own that kills its process while it is sent, or taken over, as a line of arguments says."""

import argparse
import os
import random
import signal
import traceback
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import onward

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--die", nargs="*", default=[], help="RANK:sending or RANK:taking; each of them once")
parser.add_argument("--digest")
args = parser.parse_args()

run = onward.init()


def die(when):
    name = f"{run.rank}:{when}"
    if name in args.die and not os.path.exists(flag := f"{args.digest}.{name}"):
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Counter:
    """Asked for its state at the start of each step, and for checkpoints: what is sent is asked for at the fence."""

    n = 0

    def state_dict(self):
        if any(frame.name == "_arrive" for frame in traceback.extract_stack()):
            die("sending")
        return {"n": self.n}

    def load_state_dict(self, state):
        die("taking")  # the numbers of the model are read already, those of the optimizer put in place
        self.n = state["n"]


torch.manual_seed(run.rank)
random.seed(run.rank)
model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 8)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
counter = Counter()
run.protect(model=model, optimizer=optimizer, counter=counter)

for step in run.steps(args.steps):
    with step:
        loss = model(torch.randn(16, 32)).square().mean() + random.random()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        counter.n += 1

state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "sample_ids": [counter.n]}
state |= {"rng_torch": torch.get_rng_state(), "rng_python": random.getstate()}
torch.save(state, f"{args.digest}.{run.rank}.pt")
