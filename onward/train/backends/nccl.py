"""NCCL: CUDA tensors, one GPU for each rank.

An operation is a kernel in a stream. A member that is gone leaves it spinning there; aborting the communicator ends it
within milliseconds, and the stream goes on, with garbage for a result. The abort itself returns much later, when NCCL
has joined its own threads; nobody has to wait for that.
"""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from onward.train.backends.base import Backend, Place, call_unless_left

# torch's answer to a failed collective is a watchdog: it holds a lock that the next launch needs, calls into our store,
# sleeps a minute and ends the process. It is not started when waits block; ours go by the future and never block.
WITHOUT_WATCHDOG = {
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}
# The flight recorder keeps pointers to the events of operations until the watchdog lets go of them.
WITHOUT_RECORDER = {"TORCH_FR_BUFFER_SIZE": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}
SUCCESS = 0  # of torch's WorkResult
LOST = "ncclRemoteError: a remote process exited or there was a network error"  # all that torch lets Python know


class Nccl(Backend):
    """The backend of NVIDIA devices."""

    name = "nccl"
    device = "cuda"
    late = True

    def connect(self, place: Place) -> Any:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=place.timeout_s)
        options.group_name = place.name
        os.environ.update(WITHOUT_RECORDER)
        before = {name: os.environ.get(name) for name in WITHOUT_WATCHDOG}
        os.environ.update(WITHOUT_WATCHDOG)
        try:
            inner = dist.ProcessGroupNCCL(place.store, place.rank, place.size, options)
        finally:
            for name, value in before.items():  # NCCL groups of the user's own are none of our business
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        # Now, while all members are here: in the first operation nothing could interrupt it.
        call_unless_left(lambda: inner.eager_connect_single_device(place.device), place)
        return inner

    def warm(self, device: torch.device) -> None:
        inner = self.connect(Place(dist.HashStore(), "warm", 0, 1, "", 60.0, device, lambda: ""))
        threading.Thread(target=self.abort, args=(inner,), name="onward-abort", daemon=True).start()

    def finished(self, work: Any) -> bool:
        if not work.is_completed():
            return False
        found = work.get_future_result()  # not work.wait(): after an error that aborts the communicator by itself
        if found.done() and found.value() != SUCCESS:
            raise RuntimeError(LOST)
        return True
