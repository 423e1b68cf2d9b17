"""Gloo: CPU tensors, and CUDA tensors where several ranks share one GPU.

It has no abort that works. Its connections are shut from outside (`onward.train.sockets`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from onward.train.backends.base import Backend, Place


class Gloo(Backend):
    """The backend that is always there."""

    name = "gloo"
    sockets = True

    def connect(self, place: Place) -> Any:
        return self.join(place, self.listen(place.address))

    def listen(self, address: str) -> Any:
        """Where the others will call."""
        return dist.ProcessGroupGloo.create_device(hostname=address)

    def join(self, place: Place, device: Any) -> Any:
        """Call them, and be called. Waits for all."""
        options = dist.ProcessGroupGloo._Options()
        options._devices = [device]
        options._timeout = timedelta(seconds=place.timeout_s)
        return dist.ProcessGroupGloo(place.store, place.rank, place.size, options)
