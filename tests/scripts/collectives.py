"""Every kind of collective that torch has on the CPU, inside the block or after it; what comes out is kept as state."""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import onward

parser = argparse.ArgumentParser()
parser.add_argument("--where", choices=["inside", "after"], required=True)
parser.add_argument("--digest")
args = parser.parse_args()

run = onward.init()
me, world = run.rank, run.world_size
torch.manual_seed(0)
model = DDP(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
seen = {"total": torch.zeros(())}
run.protect(model=model, optimizer=optimizer, local={"seen": seen})
everybody, even = dist.new_group(range(world)), dist.new_group(range(0, world, 2))


def zeros(n=1):
    return torch.zeros(n)


def each():
    return [zeros() for _ in range(world)]


def tensors(mine):
    """Results of this rank, from what `mine` is on each."""
    parts = [mine * 10 + other for other in range(world)]
    yield from (x := mine.clone(), dist.all_reduce(x))[:1]
    yield from (x := mine.clone(), dist.all_reduce(x, dist.ReduceOp.MAX))[:1]
    yield from (x := mine.clone(), dist.all_reduce(x, async_op=True).wait())[:1]
    yield from (x := mine.clone(), dist.all_reduce(x, group=everybody))[:1]
    yield from (x := mine.clone(), dist.broadcast(x, 1))[:1]
    x = mine.clone()
    dist.reduce(x, 0)
    yield x if me == 0 else zeros()
    yield from (x := each(), dist.all_gather(x, mine))[0]
    yield from (x := zeros(world), dist.all_gather_into_tensor(x, mine))[:1]
    yield from (x := each() if me == 0 else None, dist.gather(mine, x, 0))[0] or []
    yield from (x := zeros(), dist.scatter(x, parts if me == 0 else None, 0))[:1]
    yield from (x := zeros(), dist.reduce_scatter(x, parts))[:1]
    yield from (x := zeros(), dist.reduce_scatter_tensor(x, torch.cat(parts)))[:1]
    yield from (x := each(), dist.all_to_all(x, parts))[0]
    yield from (x := zeros(world), dist.all_to_all_single(x, torch.cat(parts)))[:1]
    x = zeros()
    for op in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine, (me + 1) % world), dist.P2POp(dist.irecv, x, (me - 1) % world)]
    ):
        op.wait()
    yield x
    if me == 0:
        dist.send(mine, 1)
    elif me == 1:
        yield from (x := zeros(), dist.recv(x, 0))[:1]
    if me % 2 == 0:
        yield from (x := mine.clone(), dist.all_reduce(x, group=even))[:1]
    dist.barrier()


def objects(step):
    told = [None] * world
    dist.all_gather_object(told, {"rank": me, "step": step})
    assert [(o["rank"], o["step"]) for o in told] == [(other, step) for other in range(world)]
    told = [{"step": step}] if me == 0 else [None]
    dist.broadcast_object_list(told, 0)
    assert told == [{"step": step}]
    told = [None]
    dist.scatter_object_list(told, [f"for {other}" for other in range(world)] if me == 0 else None, 0)
    assert told == [f"for {me}"]


def exchange(step):
    objects(step)
    return sum(t.sum() for t in tensors(torch.tensor([float(step + me)])))


for step in run.steps(45):
    with step:
        if args.where == "inside":
            seen["total"] = seen["total"] * 0.5 + exchange(step.index)
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if step.committed and args.where == "after":
        assert exchange(step.index) > 0

if args.digest:
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "sample_ids": []}
    torch.save(state | {"total": seen["total"]}, f"{args.digest}.{me}.pt")
