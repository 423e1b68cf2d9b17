"""Connecting the inner group of one generation: one small class a vendor.

Gloo has no abort that works; its connections are shut from outside (`sockets`). NCCL and HCCL have one.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist


class Backend(Protocol):
    """What a `Group` needs of its inner group, besides the operations themselves."""

    def abort(self) -> None: ...


def connect(store: dist.Store, rank: int, size: int, address: str, timeout_s: float) -> Any:
    """A gloo group bound to `address`."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = timedelta(seconds=timeout_s)
    return dist.ProcessGroupGloo(store, rank, size, options)
