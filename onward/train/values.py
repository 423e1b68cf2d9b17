"""Values that can be protected: taken apart into what can be sent, built again, read from an object and put back.

Tensors, numbers, strings, bytes, None, and lists and dicts of them; objects with `state_dict` and `load_state_dict`;
and generators of random numbers. Anything else is refused with its path. No pickle.
"""

from __future__ import annotations

import copy
import json
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import torch

from onward.errors import StateError

SCALARS = (bool, int, float, str, bytes, type(None))
_TENSOR, _LONG = "\x00onward.tensor", "\x00onward.long"  # no user's list begins with these
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1  # integers that MessagePack knows
Take = Callable[[str, torch.Tensor], Any]


class TensorRef(msgspec.Struct, frozen=True, array_like=True, tag=_TENSOR):
    """Stands for tensor number `index` where a state dict had a tensor."""

    index: int


def dtype_of(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise StateError(f"unknown tensor type {name!r} in a peer's state")
    return found


def problem(name: str, value: Any) -> str:
    """Why it cannot be protected; empty when it can."""
    if isinstance(value, torch.Tensor):
        return ""
    if isinstance(value, SCALARS):
        return (
            f"protect: {name} is a plain {type(value).__name__}, which cannot be put back in place; "
            f"keep it in a dict ({name}={{'value': ...}}) or in an object with state_dict and load_state_dict"
        )
    has_state = callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))
    if not has_state and not isinstance(value, dict | list) and _generator(value) is None:
        return (
            f"protect: {name} ({type(value).__name__}) has no state that could be restored; it needs state_dict and "
            "load_state_dict, or must be a tensor, a dict, a list or a generator of random numbers"
        )
    try:
        plain(name, state_of(value), lambda path, t: TensorRef(0))
    except StateError as e:
        return f"protect: {e}"
    except RecursionError:
        return f"protect: {name} is too deep, or contains itself"
    return ""


# ------------------------------------------------------------------------------------------- objects


def state_of(obj: Any) -> Any:
    if isinstance(obj, torch.Tensor | dict | list):
        return obj
    generator = _generator(obj)
    return generator[0]() if generator is not None else obj.state_dict()


def snapshot(obj: Any) -> Any:
    """A copy of its state."""
    return obj.detach().clone() if isinstance(obj, torch.Tensor) else copy.deepcopy(state_of(obj))


def restore(obj: Any, saved: Any) -> None:
    if isinstance(obj, torch.Tensor):
        with torch.no_grad():
            obj.detach().copy_(saved)
    elif isinstance(obj, dict):
        obj.clear()
        obj.update(copy.deepcopy(saved))
    elif isinstance(obj, list):
        obj[:] = copy.deepcopy(saved)
    else:
        generator = _generator(obj)
        put = generator[1] if generator is not None else obj.load_state_dict
        put(copy.deepcopy(saved))


def _generator(obj: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """How to read and to put back where a stream of random numbers stands; None when `obj` is none."""
    if isinstance(obj, torch.Generator):
        return obj.get_state, lambda state: obj.set_state(state.cpu())
    if isinstance(obj, random.Random):
        return obj.getstate, lambda state: obj.setstate((state[0], tuple(state[1]), state[2]))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(obj, numpy.random.Generator):
        bits = obj.bit_generator
        return lambda: _told(bits.state), lambda state: setattr(bits, "state", json.loads(state))
    if numpy is not None and isinstance(obj, numpy.random.RandomState):
        return lambda: _told(obj.get_state(legacy=False)), lambda state: obj.set_state(json.loads(state))
    return None


def _told(state: Any) -> str:
    """As text: its numbers may have more than 64 bits, and some are arrays."""
    return json.dumps(state, default=lambda array: array.tolist())


# ------------------------------------------------------------------------------------------- apart, and built again


def plain(path: str, value: Any, take: Take) -> Any:
    """`value` with tensors taken out, made of what MessagePack knows; StateError names what is not."""
    if isinstance(value, torch.Tensor):
        return take(path, value)
    if isinstance(value, int) and not _LEAST <= value <= _MOST:
        return [_LONG, hex(value)]
    if isinstance(value, SCALARS):
        return value
    if isinstance(value, Mapping):
        for k in value:
            if not isinstance(k, str | int | float | bool):
                raise StateError(f"{path} has a key of type {type(k).__name__}; only strings and numbers are protected")
        return {k: plain(f"{path}.{k}", v, take) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(f"{path}[{i}]", v, take) for i, v in enumerate(value)]
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    raise StateError(
        f"{path} is a {type(value).__name__}; protected state is tensors, numbers, strings, bytes, and lists and "
        "dicts of them"
    )


def rebuilt(value: Any, tensors: list[torch.Tensor], template: Any) -> Any:
    """The value that `plain` had taken apart, in the container types of `template` where they fit."""
    if isinstance(value, list) and len(value) == 2 and value[0] == _TENSOR:
        return tensors[value[1]]
    if isinstance(value, list) and len(value) == 2 and value[0] == _LONG:
        return int(value[1], 16)
    if isinstance(value, dict):
        old = template if isinstance(template, Mapping) else {}
        built: Any = {k: rebuilt(v, tensors, old.get(k)) for k, v in value.items()}
        if isinstance(template, Mapping) and type(template) is not dict:
            try:
                return type(template)(built)  # type: ignore[call-arg]
            except TypeError:
                return built
        return built
    if isinstance(value, list):
        items = template if isinstance(template, list | tuple) and len(template) == len(value) else [None] * len(value)
        out = [rebuilt(v, tensors, o) for v, o in zip(value, items, strict=True)]
        return tuple(out) if isinstance(template, tuple) else out
    return value
