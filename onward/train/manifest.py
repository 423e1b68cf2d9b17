"""What goes ahead of a state that moves: each tensor by name, type and shape, and all that is no tensor."""

from __future__ import annotations

import msgspec
import torch

from onward.train.values import dtype_of


class TensorInfo(msgspec.Struct, frozen=True, array_like=True):
    """What a receiver must know before the bytes come."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    on_cpu: bool
    address: int = 0  # in the source's memory, for a direct read on the same machine

    @property
    def nbytes(self) -> int:
        count = 1
        for n in self.shape:
            count *= n
        return count * int(dtype_of(self.dtype).itemsize)

    def fits(self, t: torch.Tensor | None) -> bool:
        return t is not None and tuple(t.shape) == tuple(self.shape) and str(t.dtype) == f"torch.{self.dtype}"


class Manifest(msgspec.Struct, frozen=True):
    """A complete description of one rank's shared state, without the tensor bytes."""

    step: int
    tensors: list[TensorInfo]
    values: bytes  # msgpack of name -> nested state with TensorRef in place of tensors
    pid: int = 0
    boot: str = ""
    last_sync: int = 0

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors)
