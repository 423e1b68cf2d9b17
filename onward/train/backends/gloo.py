"""Gloo: CPU tensors, and CUDA tensors where several ranks share one GPU.

It has no abort that works. Its connections are shut from outside (`onward.train.sockets`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from onward.train.backends.base import Backend, Place, call_unless_left


class Gloo(Backend):
    """The backend that is always there."""

    name = "gloo"
    sockets = True

    def connect(self, place: Place) -> Any:
        """Not for longer than the generation lasts: who has called and then died is waited for all the same."""
        device = self.listen(place.address)
        return call_unless_left(lambda: self.join(place, device), place)

    def listen(self, address: str) -> Any:
        """Where the others will call."""
        return dist.ProcessGroupGloo.create_device(hostname=address)

    def join(self, place: Place, device: Any) -> Any:
        """Call them, and be called. Waits for all."""
        options = dist.ProcessGroupGloo._Options()
        options._devices = [device]
        options._timeout = timedelta(seconds=place.timeout_s)
        return dist.ProcessGroupGloo(place.store, place.rank, place.size, options)
