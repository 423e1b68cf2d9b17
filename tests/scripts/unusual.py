"""What scripts do that most do not: see `--kind`. Written for the tests; everything it does is deterministic."""

import argparse
import random

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import onward

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kind", choices=["turns", "groups", "closure", "carried", "by-hand", "apart"], default="turns")
parser.add_argument("--steps", type=int, default=24)
parser.add_argument("--digest", metavar="FILE")
args = parser.parse_args()
run = onward.init()


def network():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))


def batch(step):
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step * 97 + run.rank))
    return x, x.sum(1, keepdim=True).sin()


def loss_of(model, x, y):
    return F.mse_loss(model(x), y)


def evaluated(x, y):
    """For an optimizer that asks for the loss as often as it likes."""
    optimizer.zero_grad()
    loss = loss_of(model, x, y)
    loss.backward()
    return loss


torch.manual_seed(0)
state = {}
if args.kind == "turns":  # two wrappers take turns, an average of one of them is kept, all with generators of its own
    models = [DDP(network()), DDP(network())]
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01, amsgrad=True) for m in models]
    average = AveragedModel(models[0].module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    own = {
        "torch": torch.Generator().manual_seed(5 + run.rank),
        "numpy": np.random.default_rng(5 + run.rank),
        "old": np.random.RandomState(5 + run.rank),
        "python": random.Random(5 + run.rank),
    }
    run.protect(a=models[0], b=models[1], a_opt=optimizers[0], b_opt=optimizers[1], average=average, local=own)
    state = {"a": models[0], "b": models[1], "a_opt": optimizers[0], "b_opt": optimizers[1], "average": average}
elif args.kind == "groups":  # parameters join the optimizer later; their gradients are there before
    model = DDP(network())
    optimizer = torch.optim.Adam(model.module[0].parameters(), lr=torch.tensor(0.05), foreach=False)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.8)
    run.protect(model=model, optimizer=optimizer, schedule=schedule)
    state = {"model": model, "optimizer": optimizer, "schedule": schedule}
elif args.kind == "by-hand":  # parameters are changed without an optimizer, and before it
    model = DDP(network())
    optimizer = torch.optim.SGD(model.module[0].parameters(), lr=0.05, momentum=0.9)
    run.protect(model=model, optimizer=optimizer)
    state = {"model": model, "optimizer": optimizer}
elif args.kind == "apart":  # a second model, that only two of the ranks have alike
    groups = [dist.new_group([0]), dist.new_group([1, 2], backend="gloo")]  # by name, too, it outlives faults
    model, part = DDP(network()), DDP(network(), process_group=groups[min(run.rank, 1)])
    optimizer, part_optimizer = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (model, part))
    run.protect(model=model, optimizer=optimizer, local={"part": part.module, "part_optimizer": part_optimizer})
    state = {"model": model, "optimizer": optimizer, "part": part, "part_optimizer": part_optimizer}
elif args.kind == "carried":  # gradients of two steps in one update
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    run.protect(model=model, optimizer=optimizer)
    state = {"model": model, "optimizer": optimizer}
else:  # several passes and exchanges within one update, state in lists
    model = DDP(nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=5)
    run.protect(model=model, optimizer=optimizer)
    state = {"model": model, "optimizer": optimizer}
torch.manual_seed(100 + run.rank)
random.seed(100 + run.rank)
np.random.seed(100 + run.rank)

for step in run.steps(args.steps):
    with step:
        x, y = batch(step.index)
        if args.kind == "turns":
            model, optimizer = models[step.index % 2], optimizers[step.index % 2]
            x = x + torch.randn(x.shape, generator=own["torch"]) + own["numpy"].random() + own["old"].rand()
            loss_of(model, x * own["python"].random(), y + random.random() + np.random.rand()).backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(models[0].module)
        elif args.kind == "groups":
            if step.index == 8:
                optimizer.add_param_group({"params": list(model.module[3].parameters()), "lr": torch.tensor(0.01)})
            loss_of(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        elif args.kind == "by-hand":
            loss_of(model, x, y).backward()
            with torch.no_grad():
                for p in model.module[3].parameters():
                    p.data.sub_(p.grad, alpha=0.05)
                model.module[0].weight.mul_(0.99)
            if step.index % 3:
                optimizer.step()
            optimizer.zero_grad()
            model.zero_grad()
        elif args.kind == "apart":
            for m, o in ((model, optimizer), (part, part_optimizer)):
                loss_of(m, x, y).backward()
                o.step()
                o.zero_grad()
        elif args.kind == "carried":
            loss_of(model, x, y).backward()
            if step.index % 2 == 1:
                optimizer.step()
                optimizer.zero_grad()
        else:
            optimizer.step(lambda x=x, y=y: evaluated(x, y))

if args.digest:
    seen = {"model": {}, "optimizer": {}, "sample_ids": [], "rng_torch": torch.get_rng_state()}
    seen |= {name: obj.state_dict() for name, obj in state.items()}
    seen |= {"rng_python": random.getstate(), "rng_numpy": np.random.get_state()[1].tolist()}
    if args.kind == "turns":
        seen["own"] = [own["torch"].get_state(), own["numpy"].random(4).tolist(), own["old"].rand(4).tolist()]
    torch.save(seen, f"{args.digest}.{run.rank}.pt")
