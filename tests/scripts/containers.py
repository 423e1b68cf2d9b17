"""Protected containers as scripts keep them: nested, of types of their own, held on to from outside, the same twice."""

import argparse
import random
from collections import Counter, OrderedDict, defaultdict, namedtuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import onward

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=24)
parser.add_argument("--digest", metavar="FILE")
args = parser.parse_args()
Point = namedtuple("Point", "step loss")

run = onward.init()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
losses, last, average, ends = [], OrderedDict(b=0, a=0), torch.zeros(2), [0.0]
stats = {"losses": losses, "recent": {"all": losses}, "last": last, "average": average, "best": Point(-1, 1e9)}
stats |= {"counts": Counter(), "sums": defaultdict(float), "mean": np.float64(0), "pair": (0, [])}
run.protect(model=model, optimizer=optimizer, stats=stats, local={"ends": ends})

for step in run.steps(args.steps):
    with step:
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step.index * 97 + run.rank))
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).sin())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ends.append(loss.item())
        total = loss.detach().clone()
        dist.all_reduce(total)
        loss = total.item()
        losses.append(loss)  # all through the names that the script has for them
        last.move_to_end(random.Random(step.index).choice("ab"))
        last[f"{step.index % 3}"] = step.index
        average += loss
        if loss < stats["best"].loss:
            stats["best"] = Point(step.index, loss)
        stats["counts"][f"{step.index % 2}"] += 1
        stats["sums"][f"{step.index % 4}"] += loss
        stats["mean"] = np.mean(losses)
        stats["pair"] = (stats["pair"][0] + 1, [*stats["pair"][1], Point(step.index, None)])

if args.digest:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "ends": ends, "average": average}
    state |= {"losses": losses, "last": [list(item) for item in last.items()], "mean": float(stats["mean"])}
    state |= {name: dict(stats[name]) for name in ("counts", "sums")}
    state["best"], state["pair"] = [*stats["best"]], [stats["pair"][0], [[*p] for p in stats["pair"][1]]]
    state["types"] = [type(v).__name__ for v in (*stats.values(), *stats["pair"][1])]
    held = [stats["losses"], stats["recent"]["all"], stats["last"], stats["average"]]
    state["held"] = [a is b for a, b in zip(held, (losses, losses, last, average), strict=True)]
    torch.save(state, f"{args.digest}.{run.rank}.pt")
