"""How a rank becomes part of the job: it is known to torch, and stands in the first generation."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

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
    rank.page.set("generation", order.generation)
    try:
        _init_torch(rank)
    except RuntimeError as e:
        rank.fail_outside(f"could not form the group: {e}")
    rank.report(Stage.FORMED)
    rank.link.wait_order(lambda o: o.generation > order.generation or o.want == "run")
    rank.report(Stage.TRAINING)


def _init_torch(rank: Rank) -> None:
    timeout = timedelta(seconds=rank.groups.timeout_s)
    dist.init_process_group(
        "onward", store=rank.groups.store, rank=rank.index, world_size=rank.world_size, timeout=timeout
    )
