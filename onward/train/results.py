"""Results of collectives, kept as bytes for a rank that has to be told them."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from onward.errors import StateError
from onward.train.streams import tensor_bytes
from onward.train.values import dtype_of


def flatten(tensors: Any) -> list[torch.Tensor]:
    """The tensors of an operation, however its arguments nest them."""
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [t for item in tensors for t in flatten(item)]


def keep(op: str, tensors: Any) -> bytes:
    """The result of `op`, as `fill` takes it."""
    flat = [t.detach().cpu().contiguous() for t in flatten(tensors)]
    body = [(str(t.dtype).removeprefix("torch."), list(t.shape), tensor_bytes(t)) for t in flat]
    return msgspec.msgpack.encode([op, body])


def fill(op: str, tensors: Any, data: bytes) -> None:
    """Put a recorded result into `tensors`."""
    name, body = msgspec.msgpack.decode(data)
    own = flatten(tensors)
    if name != op or len(own) != len(body) or any(list(t.shape) != b[1] for t, b in zip(own, body, strict=True)):
        raise StateError(f"the script runs {op} where it had run {name}: it takes another path the second time")
    with torch.no_grad():
        for t, (dtype, shape, raw) in zip(own, body, strict=True):
            if raw:
                t.detach().copy_(torch.frombuffer(bytearray(raw), dtype=dtype_of(dtype)).reshape(shape))
