"""A training script that is put together at random: `--seed` chooses its model, optimizer, data, exchanges and loop.

With `--plain` the same script trains without onward. `--set name=value` overrules a choice, `--show` prints them.
"""

import argparse
import ast
import contextlib
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from anything_made_of import Network, Plainly, Samples
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler

CHOICES = {
    "model": ["plain", "norm", "memory", "attention", "sparse", "unused", "frozen", "turns", "opponents"],
    "wrapper": [{}, {"broadcast_buffers": False}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.001},
                {"static_graph": True}],
    "optimizer": ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "RAdam", "Adadelta", "ASGD", "Adamax", "Rprop",
                  "Adafactor", "LBFGS"],
    "how": [{}, {"foreach": True}, {"foreach": False}, {"fused": True}],
    "schedule": [None, None, "StepLR", "OneCycleLR", "CosineAnnealingWarmRestarts", "ReduceLROnPlateau", "SequentialLR",
                 "CyclicLR", "LambdaLR"],
    "scaler": [False, False, False, True],
    "low": [False, False, True],  # autocast to bfloat16
    "clip": [False, True],
    "average": [None, None, "ema", "swa"],
    "accumulate": [None, None, None, "inside", "across", "later"],
    "zero": ["after", "before"],
    "noise": [None, "before", "after", "sometimes"],
    "data": ["fixed", "streams", "loader", "workers", "sampled", "own"],
    "late": [None, None, "group", "clamp", "decay", "buffer"],
    "inside": ["all_reduce", "async", "subgroup", "objects", "ring", "scatter", "to_all", "functional", "sometimes",
               "afterwards", "barrier", "gather", "coalesced"],
    "between": ["evaluate", "objects", "async", "several", "pair", "ring", "reduce", "draw"],
    "loop": ["for", "function", "progress", "left"],
}  # fmt: skip
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
parser.add_argument("--plain", action="store_true")
parser.add_argument("--show", action="store_true")
parser.add_argument("--digest", metavar="FILE")
args = parser.parse_args()


def chosen(seed):
    pick = random.Random(seed)
    plan = {name: pick.choice(values) for name, values in CHOICES.items()}
    plan["inside"] = sorted(pick.sample(CHOICES["inside"], pick.choice([0, 0, 1, 2])))
    plan["between"] = sorted(pick.sample(CHOICES["between"], pick.choice([0, 0, 1, 2])))
    for change in args.set:
        name, _, value = change.partition("=")
        plan[name] = ast.literal_eval(value)
    changing = plan["model"] in ("turns", "opponents", "unused", "sparse") or plan["accumulate"]
    if "static_graph" in plan["wrapper"] and (changing or plan["optimizer"] == "LBFGS"):
        plan["wrapper"] = {}
    if plan["model"] == "sparse":
        plan |= {"optimizer": "SGD", "how": {}, "clip": False, "scaler": False, "average": None}
        plan |= {"accumulate": None, "wrapper": {}, "schedule": "StepLR"}
    if plan["optimizer"] == "LBFGS":
        plan |= {"scaler": False, "accumulate": None, "late": None, "how": {}}
        plan["schedule"] = None if plan["schedule"] in ("OneCycleLR", "CyclicLR") else plan["schedule"]
    if plan["optimizer"] == "Adafactor" or (plan["how"].get("fused") and plan["optimizer"] not in FUSED):
        plan["how"] = {}
    if plan["accumulate"]:
        plan["scaler"] = False
    if plan["late"] == "group" and plan["schedule"] not in (None, "ReduceLROnPlateau"):
        plan["schedule"] = "StepLR"  # the others know the learning rates of the groups that were there first only
    return plan


FUSED = ("SGD", "Adam", "AdamW", "Adagrad")


plan = chosen(args.seed)
if args.show:
    print(plan)
    raise SystemExit
if args.plain:
    run = Plainly()
else:
    import onward

    run = onward.init()
rank, world = run.rank, run.world_size
torch.manual_seed(1)


def optimizer_for(parameters):
    options = {"lr": 0.01, **plan["how"]}
    if plan["optimizer"] == "SGD":
        options["momentum"] = 0.9 if plan["model"] != "sparse" else 0.0
    if plan["optimizer"] == "LBFGS":
        options = {"lr": 0.1, "max_iter": 3, "history_size": 4}
    return getattr(torch.optim, plan["optimizer"])(parameters, **options)


def schedule_for(optimizer):
    cycle = {"cycle_momentum": plan["optimizer"] in ("SGD", "Adam", "AdamW")}
    made = {
        "StepLR": lambda o: schedules.StepLR(o, 5, 0.8),
        "OneCycleLR": lambda o: schedules.OneCycleLR(o, 0.02, total_steps=2 * args.steps, **cycle),
        "CyclicLR": lambda o: schedules.CyclicLR(o, 0.001, 0.02, step_size_up=4, **cycle),
        "CosineAnnealingWarmRestarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 4),
        "ReduceLROnPlateau": lambda o: schedules.ReduceLROnPlateau(o, patience=1, factor=0.9),
        "LambdaLR": lambda o: schedules.LambdaLR(o, lambda epoch: 0.97**epoch),
        "SequentialLR": lambda o: schedules.SequentialLR(
            o, [schedules.LinearLR(o, 0.1, total_iters=4), schedules.ExponentialLR(o, 0.95)], [6]
        ),
    }
    return made[plan["schedule"]](optimizer) if plan["schedule"] else None


shared = {"exchanged": 0.0, "evaluated": 0.0}  # alike on all ranks
mine = {"exchanged": 0.0, "ids": []}  # this rank's own
several = plan["model"] in ("turns", "opponents")
wrapper = {"find_unused_parameters": plan["model"] == "unused", **plan["wrapper"]}
models = [DDP(Network(plan["model"], plan["late"] == "buffer", mine), **wrapper) for _ in range(1 + several)]
late = plan["late"] == "group"
optimizers = [optimizer_for((m.module.first if late else m).parameters()) for m in models]
schedule = schedule_for(optimizers[0])
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=4, enabled=plan["scaler"])
average = None
if plan["average"]:
    ema = get_ema_multi_avg_fn(0.9) if plan["average"] == "ema" else None
    average = AveragedModel(models[0].module, multi_avg_fn=ema)
kept = {f"model{i}": m for i, m in enumerate(models)} | {f"optimizer{i}": o for i, o in enumerate(optimizers)}
kept |= {"schedule": schedule} if schedule is not None else {}
kept |= {"average": average} if average is not None else {}
kept |= {"scaler": scaler} if plan["scaler"] else {}
own = np.random.default_rng(rank)
run.protect(**kept, shared=shared, local={"mine": mine, "own": own})
if plan["data"] in ("loader", "workers"):
    dataset = Samples()
    sampler = DistributedSampler(dataset, world, rank, seed=3)
    workers = 1 if plan["data"] == "workers" else 0
    batches = run.batches(DataLoader(dataset, 6, sampler=sampler, num_workers=workers, drop_last=True))
elif plan["data"] == "sampled":
    batches = run.batches(Samples(), global_batch=4 * world)
pairs = [dist.new_group([r for r in range(world) if r % 2 == side]) for side in range(2)]
pair = pairs[rank % 2]
torch.manual_seed(100 + rank)
random.seed(100 + rank)
np.random.seed(100 + rank)


def drawn(index):
    match plan["data"]:
        case "fixed":
            return torch.randn(6, 16, generator=torch.Generator().manual_seed(index * 97 + rank))
        case "streams":
            return torch.randn(6, 16) + random.random() + torch.from_numpy(np.random.rand(16)).float()
        case "own":
            return torch.from_numpy(own.standard_normal((6, 16))).float()
    ids, x = next(batches)
    mine["ids"] += ids.tolist()
    return x


def exchange(kind, value):
    """A collective inside a step, and what comes of it: for all alike, or for this rank."""
    t, weights, told, own = torch.full((1,), float(value)), torch.arange(1.0, world + 1), 0.0, torch.zeros(1)
    match kind:
        case "all_reduce":
            dist.all_reduce(t)
            told = t.item()
        case "subgroup":
            own = t.clone()
            dist.all_reduce(own, group=pair)
        case "objects":
            found = [None] * world
            dist.all_gather_object(found, {"rank": rank, "value": float(value)})
            told = sum(f["value"] for f in found)
        case "ring":
            ops = [dist.P2POp(dist.isend, t, (rank + 1) % world), dist.P2POp(dist.irecv, own, (rank - 1) % world)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
        case "scatter":
            dist.reduce_scatter_tensor(own, t.repeat(world) * weights)
        case "to_all":
            own = torch.zeros(world)
            dist.all_to_all_single(own, t.repeat(world) * weights)
        case "gather":
            got = torch.zeros(world)
            dist.all_gather_into_tensor(got, t)
            told = got.sum().item()
        case "coalesced":
            parts = [t, t.clone() + 1]
            with dist._coalescing_manager(async_ops=True) as manager:
                for part in parts:
                    dist.all_reduce(part)
            manager.wait()
            told = sum(p.item() for p in parts)
        case "barrier":
            dist.barrier()
    shared["exchanged"] = 0.5 * shared["exchanged"] + told
    mine["exchanged"] += own.sum().item()


def loss_of(model, x, index):
    with torch.autocast("cpu", torch.bfloat16, enabled=plan["low"]):
        out = model(x, index).float()
    loss = F.mse_loss(out, x.sum(1, keepdim=True).sin())
    if "functional" in plan["inside"]:
        loss = loss + 0.1 * torch.distributed.nn.functional.all_reduce(out.mean()) ** 2
    return loss


def backward(model, optimizer, x, index):
    if plan["accumulate"] == "inside":
        with model.no_sync():
            scaler.scale(loss_of(model, x[:3], index) / 2).backward()
        x = x[3:]
    loss = loss_of(model, x, index)
    scaler.scale(loss).backward()
    return loss.detach()


def is_due(index):
    """Whether this step ends with an update."""
    together = {"across": 2, "later": 1 if index < 12 else 3}.get(plan["accumulate"], 1)
    return index % together == together - 1


def begins(index):
    return index == 0 or is_due(index - 1)


def update(model, optimizer, x, index):
    if plan["zero"] == "before" and begins(index):
        optimizer.zero_grad()
        model.zero_grad()
    if plan["optimizer"] == "LBFGS":

        def closure():
            model.zero_grad()
            loss = loss_of(model, x, index)
            loss.backward()
            told = loss.detach().reshape(1)
            dist.all_reduce(told)  # which the optimizer keeps, and decides by
            return told / world

        loss = optimizer.step(closure)
        optimizer.zero_grad()
        return loss
    loss = backward(model, optimizer, x, index)
    for kind in plan["inside"]:
        if kind not in ("async", "functional", "afterwards") and (kind != "sometimes" or index % 7 == 3):
            exchange("all_reduce" if kind == "sometimes" else kind, loss.item())
    pending, told = None, loss.clone().reshape(1)
    if "async" in plan["inside"]:
        pending = dist.all_reduce(told, async_op=True)
    if is_due(index):
        if plan["clip"]:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        if plan["zero"] == "after":
            optimizer.zero_grad()
            model.zero_grad()
    if pending is not None:
        pending.wait()
        shared["exchanged"] = 0.5 * shared["exchanged"] + told.item()
    if "afterwards" in plan["inside"]:
        exchange("all_reduce", loss.item())
    return loss


def train(index):
    """One step."""
    if plan["late"] == "clamp" and index % 5 == 4:
        for p in models[0].parameters():
            p.data.clamp_(-0.2, 0.2)
    if plan["late"] == "decay" and index % 9 == 8:
        with torch.no_grad():
            for p in models[0].parameters():
                p.mul_(0.99)
    if late and index == 8:
        for m, o in zip(models, optimizers, strict=True):
            o.add_param_group({"params": list(m.module.last.parameters())})
    x = drawn(index)
    if plan["noise"] == "before":
        x = x + 0.1 * torch.randn(x.shape) * random.random()
    if plan["model"] == "opponents":
        losses = [update(m, o, x, index) for m, o in zip(models, optimizers, strict=True)]
        loss = losses[0] + losses[1]
    else:
        which = index % len(models)
        loss = update(models[which], optimizers[which], x, index)
    if average is not None and (plan["average"] == "ema" or index >= 10):
        average.update_parameters(models[0].module)
    if schedule is not None:
        schedule.step(*([shared["evaluated"]] if plan["schedule"] == "ReduceLROnPlateau" else []))
    if plan["noise"] == "after" or (plan["noise"] == "sometimes" and index % 6 == 5):
        mine["noise"] = torch.randn(1).item() + random.random() + np.random.rand()
    mine["loss"] = loss.item()
    return loss


@torch.no_grad()
def between(kind):
    t = torch.tensor([mine["loss"]])
    match kind:
        case "evaluate":
            models[0].eval()
            t = models[0](torch.randn(4, 16, generator=torch.Generator().manual_seed(rank)), 0).mean().reshape(1)
            models[0].train()
            dist.all_reduce(t)
            dist.barrier()
        case "objects":
            told = [None]
            found = [None] * world
            dist.all_gather_object(found, mine["loss"])
            told = [sum(found)]
            dist.broadcast_object_list(told, src=world - 1)
            t = torch.tensor(told)
        case "async":
            parts = [t.clone(), 2 * t]
            works = [dist.all_reduce(p, async_op=True) for p in parts]
            for work in reversed(works):
                work.wait()
            t = parts[0] - 3 * parts[1]
        case "several":
            parts = [torch.zeros(1) for _ in range(world)]
            dist.all_gather(parts, t)
            best = torch.stack(parts).argmin()
            dist.broadcast(best, src=0)
            t = parts[int(best)]
        case "pair":
            dist.all_reduce(t, group=pair)
            dist.all_reduce(t)
        case "ring":
            got = torch.zeros(1)
            if rank == 0:
                dist.send(t, 1)
            elif rank == 1:
                dist.recv(got, 0)
            dist.all_reduce(got)
            t = got * 2
            dist.all_reduce(t)
        case "reduce":
            dist.reduce(t, 0)
            dist.broadcast(t, 0)
        case "draw":
            t = torch.zeros(1)
            mine["drawn"] = torch.randn(1).item() + random.random() + np.random.rand()
    shared["evaluated"] = t.item()


def after(step):
    if step.committed and step.index % 3 == 2:
        for kind in plan["between"]:
            with run.section(kind) if step.index % 2 else contextlib.nullcontext():
                between(kind)


def one(step):
    with step:
        train(step.index)
    after(step)
    return step.committed and step.index == args.steps - 1


def through(steps):
    yield from steps


if plan["loop"] == "function":
    any(one(step) and False for step in run.steps(args.steps))
else:
    steps = run.steps(args.steps + 5 * (plan["loop"] == "left"))
    for step in through(steps) if plan["loop"] == "progress" else steps:
        if one(step) and plan["loop"] == "left":
            break

last = torch.tensor([mine["loss"]])
dist.all_reduce(last)
if args.digest:
    seen = {"model": {}, "optimizer": {}, "sample_ids": mine["ids"], "rng_torch": torch.get_rng_state(), "last": last}
    seen |= {name: obj.state_dict() for name, obj in kept.items()}
    seen |= {"shared": shared, "mine": mine, "own": own.random(3).tolist()}
    seen |= {"rng_python": random.getstate(), "rng_numpy": np.random.get_state()[1].tolist()}
    if schedule is not None:
        seen["schedule"] = [group["lr"] for group in optimizers[0].param_groups]
    torch.save(seen, f"{args.digest}.{rank}.pt")
dist.destroy_process_group()
