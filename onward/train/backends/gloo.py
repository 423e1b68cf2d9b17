"""Gloo: CPU tensors, and CUDA tensors where several ranks share one GPU.

It has no abort that works. Its connections are shut from outside (`onward.train.sockets`).
"""

from __future__ import annotations

import ipaddress
import os
import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from onward.train.backends.base import Backend, Place, call_unless_left

INTERFACE = "GLOO_SOCKET_IFNAME"  # torch's own variable; of several that it names, the first


def door_of(address: str) -> str:
    """Where the others are to call: at our address in the job, or on the interface that the user has named.

    On loopback nobody else calls, and an interface has no say.
    """
    name = os.environ.get(INTERFACE, "").partition(",")[0].strip()
    ours = ipaddress.ip_address(address.partition("%")[0])
    if not name or ours.is_loopback:
        return address
    import psutil

    family = socket.AF_INET if ours.version == 4 else socket.AF_INET6
    found = {n: [a.address for a in those if a.family == family] for n, those in psutil.net_if_addrs().items()}
    if not found.get(name):
        known = ", ".join(sorted(n for n, those in found.items() if those))
        raise RuntimeError(f"{INTERFACE}={name}: no interface of this name has an address here; there are {known}")
    return found[name][0]


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
