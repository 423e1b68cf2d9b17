"""The libraries that carry operations between ranks, one small file each, and which of them a run uses.

A run has gloo for CPU tensors, and for the tensors of its device the device's own library, where every rank has a
device to itself.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util

import torch

from onward.errors import UsageError
from onward.log import get_logger
from onward.train.backends.base import Backend, Place
from onward.train.backends.gloo import Gloo
from onward.train.backends.hccl import Hccl
from onward.train.backends.nccl import Nccl

__all__ = ["ALL", "Backend", "Place", "choose", "pick_device"]

log = get_logger("onward.train")
ALL: dict[str, Backend] = {b.name: b for b in (Gloo(), Nccl(), Hccl())}


def pick_device(wanted: str | None, local_rank: int) -> torch.device:
    """The device of a rank: what was asked for, else an accelerator, else the CPU."""
    if wanted is not None:
        return torch.device(wanted)
    if importlib.util.find_spec("torch_npu") is not None:
        importlib.import_module("torch_npu")  # gives torch its `npu`
    for kind in ("cuda", "npu"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            index = local_rank % module.device_count()
            module.set_device(index)
            return torch.device(kind, index)
    return torch.device("cpu")


def choose(wanted: str | None, device: torch.device, local_rank: int, local_world: int) -> tuple[Backend, ...]:
    """The backends of a run: gloo, and after it the one for the tensors of `device` where that has its own."""
    name = wanted or _default(device, local_rank, local_world)
    if name not in ALL:
        near = difflib.get_close_matches(name, ALL, 1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(ALL)}"
        raise UsageError(f"unknown backend {name!r}{hint}")
    found = ALL[name]
    if found.device not in ("cpu", device.type):
        raise UsageError(
            f"backend {name!r} carries {found.device} tensors, but the device of this rank is {device}; "
            f"pass device={found.device!r} to onward.init, or leave the backend out"
        )
    return (ALL["gloo"],) if found.name == "gloo" else (ALL["gloo"], found)


def _default(device: torch.device, local_rank: int, local_world: int) -> str:
    if device.type == "npu":
        return "hccl"  # gloo does not know such tensors
    if device.type != "cuda":
        return "gloo"
    if local_world <= torch.cuda.device_count() and device.index in (None, local_rank):
        return "nccl"
    if local_rank == 0:
        log.info("several ranks share a GPU, which NCCL refuses: gloo is used (onward.init(backend=...) overrides)")
    return "gloo"
