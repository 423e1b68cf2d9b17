"""Operations of a group while some of its ranks are absent, where the script, or DDP, counts with all of them.

So does a set-up that begins without them: the groups that it makes are for all, since the others join later. In place
of an absent rank's part of a result stands a copy of what this rank gives: its shape is right, and DDP, which compares
what all ranks have, finds them alike. What only an absent rank can give is an error, but not in DDP: it gives the state
of one rank to all, and any that is there will do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from onward.errors import UsageError
from onward.train.recorder import inside_wrapper

_ROOTED = ("broadcast", "reduce", "gather", "scatter")


def among(there: Sequence[int], full: int, op: str, args: tuple[Any, ...], whole: bool) -> tuple[str, tuple[Any, ...]]:
    """The operation for those who are `there` alone, of `full`. `whole`: its root is counted among all."""
    if op == "_allgather_base" and args[0].numel() == args[1].numel() * full:
        rows = list(args[0].view(full, -1).unbind())
        op, args = "allgather", ([rows], [args[1].reshape(-1)], c10d.AllgatherOptions())
    if op in ("allgather", "gather") and all(len(each) == full for each in args[0]):
        outputs, inputs, options = args
        with torch.no_grad():
            for each, mine in zip(outputs, inputs, strict=False):
                for at in set(range(full)).difference(there):
                    each[at].detach().copy_(mine)
        args = ([[each[at] for at in there] for each in outputs], inputs, options)
    if whole and op in _ROOTED:
        args = (*args[:-1], _rooted(op, args[-1], there))
    return op, args


def _rooted(op: str, options: Any, there: Sequence[int]) -> Any:
    if options.rootRank not in there and not inside_wrapper():
        root = f"rank {options.rootRank} of the group"
        raise UsageError(f"{op}: its root is {root}, which is absent while this set-up runs")
    mine = type(options)()
    for name in ("rootRank", "rootTensor", "reduceOp", "timeout", "asyncOp"):
        if hasattr(options, name):
            setattr(mine, name, getattr(options, name))
    mine.rootRank = there.index(options.rootRank) if options.rootRank in there else 0
    return mine
