"""Collectives for one: what a group answers while its process runs the script alone.

A spare runs the user's script up to its first step with nobody to talk to. Shapes must come out right; values need not,
because state is loaded before the process joins.
"""

from __future__ import annotations

from typing import Any


def answer(op: str, rank: int, size: int, args: tuple[Any, ...]) -> None:
    """Fill the outputs of `op` from this rank's own inputs."""
    match op:
        case "allgather":
            for outputs, tensor in zip(args[0], args[1], strict=False):
                for out in outputs:
                    out.copy_(tensor)
        case "allgather_coalesced":
            for outputs in args[0]:
                for out, tensor in zip(outputs, args[1], strict=False):
                    out.copy_(tensor)
        case "_allgather_base":
            args[0].view(size, -1).copy_(args[1].reshape(1, -1).expand(size, -1))
        case "reduce_scatter":
            for out, inputs in zip(args[0], args[1], strict=False):
                out.copy_(inputs[rank])
        case "_reduce_scatter_base":
            args[0].copy_(args[1].reshape(size, -1)[rank].view_as(args[0]))
        case "alltoall":
            for out, tensor in zip(args[0], args[1], strict=False):
                if out.shape == tensor.shape:
                    out.copy_(tensor)
        case "alltoall_base":
            if args[0].shape == args[1].shape:
                args[0].copy_(args[1])
        case "gather":
            for outputs in args[0]:
                for out in outputs:
                    out.copy_(args[1][0])
        case "scatter":
            if args[1]:
                args[0][0].copy_(args[1][0][rank])
        case _:
            pass
