"""What DDP wrappers that are protected must be like, and what their communication hooks keep from step to step.

A hook without state of its own needs nothing. That of PowerSGD is known: its low-rank factors are equal on every rank,
its errors are each rank's own. Any other state must be protected by the script, or a replacement would begin without.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
from torch.nn.parallel import DistributedDataParallel

_CONSTANT = (bool, int, float, str, bytes, type(None), dist.ProcessGroup)
_HARMLESS = "_AllreduceUpcastHookState"  # of DDP's own mixed precision


class PowerSGD:
    """The state of PowerSGD: `state_dict` is the part that all ranks have alike."""

    _NUMBERS = ("iter", "total_numel_before_compression", "total_numel_after_compression", "next_stats_report")

    def __init__(self, state: Any, device: torch.device) -> None:
        self._state = state
        self._device = device

    def state_dict(self) -> dict[str, Any]:
        found = {name: getattr(self._state, name) for name in self._NUMBERS}
        random = self._state.rng.get_state(legacy=False)
        words = torch.from_numpy(random["state"]["key"].astype("int64"))
        found["random"] = [words, random["state"]["pos"], random["has_gauss"], random["gauss"]]
        return {**found, "p": dict(self._state.p_memory_dict), "q": dict(self._state.q_memory_dict)}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        for name in self._NUMBERS:
            setattr(self._state, name, saved[name])
        words, pos, has_gauss, gauss = saved["random"]
        self._state.rng.set_state(("MT19937", words.numpy().astype("uint32"), pos, has_gauss, gauss))
        self._fill(self._state.p_memory_dict, saved["p"])
        self._fill(self._state.q_memory_dict, saved["q"])

    @property
    def errors(self) -> dict[int, torch.Tensor]:
        """What compression has left out on this rank, by bucket."""
        found: dict[int, torch.Tensor] = self._state.error_dict
        return found

    @errors.setter
    def errors(self, saved: dict[int, torch.Tensor]) -> None:
        self._fill(self._state.error_dict, saved)

    def _fill(self, tensors: dict[int, torch.Tensor], saved: dict[int, torch.Tensor]) -> None:
        tensors.clear()
        tensors.update({bucket: t.to(self._device) for bucket, t in saved.items()})


def power_sgd_of(wrapper: DistributedDataParallel) -> list[PowerSGD]:
    device = next(wrapper.parameters()).device
    return [PowerSGD(state, device) for _, state in wrapper._comm_hooks if isinstance(state, PowerSGDState)]


def problems(name: str, wrapper: DistributedDataParallel, world_size: int, protected: Collection[int]) -> list[str]:
    """Why a replacement could not go on with it. `protected`: the ids of what the script has protected."""
    found = []
    size = wrapper.process_group.size()
    if size < world_size:
        found.append(
            f"protect: {name} is wrapped for a group of {size} of {world_size} ranks, so that its state is not the "
            f"same on all; give what is inside of it and its optimizer as each rank's own: "
            f"local={{'{name}': {name}.module, ...}}"
        )
    for hook, state in wrapper._comm_hooks:
        kind, known = type(state).__name__, isinstance(state, PowerSGDState) or type(state).__name__ == _HARMLESS
        called = getattr(hook, "__qualname__", repr(hook))
        if kind == "PostLocalSGDState":
            found.append(
                f"protect: {name} has the communication hook {called}, after which the parameters are not the same on "
                "all ranks, so that a lost rank could not be replaced"
            )
        elif not known and not _is_protected(state, protected):
            found.append(
                f"protect: {name} has a communication hook ({called}) with state of its own (a {kind}), without which "
                "a replacement would begin: protect that, too, as local={'hook': state}; what never changes, bind to "
                "the hook with functools.partial instead"
            )
    return found


def sharded(name: str, modules: Iterable[nn.Module], tensors: Iterable[torch.Tensor]) -> str:
    """Why what is spread over the ranks cannot be protected; empty: it is not."""
    told = "each rank holds a part of it that no other has, so that a lost rank could not be replaced"
    if any(kind.__name__ == "FullyShardedDataParallel" for m in modules for kind in type(m).__mro__):
        return f"protect: {name} is wrapped by FullyShardedDataParallel: {told}; use DistributedDataParallel"
    if any(type(t).__name__ == "DTensor" for t in tensors):
        return f"protect: {name} has parameters that are DTensors (fully_shard, or a parallel plan): {told}"
    return ""


def _is_protected(state: Any, protected: Collection[int]) -> bool:
    if isinstance(state, tuple):
        return all(_is_protected(part, protected) for part in state)
    return isinstance(state, _CONSTANT) or id(state) in protected


def watch() -> None:
    """The hooks that torch has built in take only the results of torch's own groups: these do the same in Python."""
    dist._register_builtin_comm_hook = _register_in_python


def _register_in_python(reducer: Any, kind: Any) -> None:
    fp16 = kind == dist.BuiltinCommHookType.FP16_COMPRESS
    hook = default_hooks.fp16_compress_hook if fp16 else default_hooks.allreduce_hook
    dist._register_comm_hook(reducer, None, hook)
