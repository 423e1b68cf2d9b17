"""How a rank becomes part of the job: it is known to torch, and stands in the first generation."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from onward.core.facts import Stage
from onward.train.generation import Generation
from onward.train.group import Group
from onward.train.rank import Rank


def join(rank: Rank) -> None:
    """Form the first group with the others; a spare only sets up torch, alone."""

    def make_group(options: Any, backend_options: Any) -> Group:
        ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
        size = options.group_size
        return Group(rank.groups, options.group_id, options.group_rank, size, ranks, rank.world_size)

    dist.Backend.register_backend("onward", make_group, extended_api=True, devices=["cpu", "cuda", "npu"])
    _answer_to({backend.name for backend in rank.groups.backends})
    if rank.spare:
        rank.groups.alone = True
        rank.report(Stage.SETUP)
        _init_torch(rank)
        return
    rank.report(Stage.SETUP)
    order = rank.link.wait_order(lambda o: o.want in ("form", "run"))
    assert order is not None
    rank.groups.generation = Generation(order.generation)
    if order.form is not None:
        rank.partner.choose(order.form.partner, order.generation)
        rank.groups.present = frozenset(order.form.members)
        rank.groups.as_whole = bool(order.form.members)
        rank.members = tuple(order.form.members) or rank.members
    rank.page.set("generation", order.generation)
    try:
        _init_torch(rank)
    except RuntimeError as e:
        rank.fail_outside(f"could not form the group: {e}")
    rank.report(Stage.FORMED)
    rank.link.wait_order(lambda o: o.generation > order.generation or o.want == "run")
    rank.report(Stage.TRAINING)


def _answer_to(names: set[str]) -> None:
    """Groups that a script asks for by the name of a library (`new_group(backend="gloo")`) are ours, too, where that
    library is one of the run's: a native one would not outlive a fault.
    """
    make = c10d._new_process_group_helper

    def helper(size: int, rank: int, ranks: Any, backend: Any, *args: Any, **kwargs: Any) -> Any:
        asked = {part.rpartition(":")[2] for part in str(backend).lower().split(",")}
        return make(size, rank, ranks, "onward" if asked <= names else backend, *args, **kwargs)

    c10d._new_process_group_helper = helper


def _init_torch(rank: Rank) -> None:
    timeout = timedelta(seconds=rank.groups.timeout_s)
    dist.init_process_group(
        "onward", store=rank.groups.store, rank=rank.index, world_size=rank.world_size, timeout=timeout
    )
