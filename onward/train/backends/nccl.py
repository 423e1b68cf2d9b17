"""NCCL: CUDA tensors, one GPU for each rank.

An operation is a kernel in a stream. A member that is gone leaves it spinning there; aborting the communicator ends it
within milliseconds, and the stream goes on, with garbage for a result. The abort itself returns much later, when NCCL
has joined its own threads; nobody has to wait for that.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from onward.train.backends.base import Backend, Place, call_unless_left

# torch's own answers to a failed collective are to end the process, now or some minutes later. Ours is to go on.
SETTINGS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # its watchdog would end the process
    "TORCH_NCCL_ENABLE_MONITORING": "0",  # so would the watchdog's own watchdog
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",  # asks our store every second whether somebody wants a dump
    "TORCH_NCCL_PROPAGATE_ERROR": "0",  # news of a fault travels by the manager
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",  # a CUDA error is to surface where the user's code can report it
    "TORCH_NCCL_BLOCKING_WAIT": "0",
}

SUCCESS, TIMED_OUT = 0, 1  # of torch's WorkResult
LOST = "ncclRemoteError: a remote process exited or there was a network error"  # all that torch lets Python know


class Nccl(Backend):
    """The backend of NVIDIA devices."""

    name = "nccl"
    device = "cuda"
    late = True

    def connect(self, place: Place) -> Any:
        os.environ.update(SETTINGS)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=place.timeout_s)
        options.group_name = place.name
        inner = dist.ProcessGroupNCCL(place.store, place.rank, place.size, options)
        # Now, while all members are here: in the first operation nothing could interrupt it.
        call_unless_left(lambda: inner.eager_connect_single_device(place.device), place)
        return inner

    def warm(self, device: torch.device) -> None:
        inner = self.connect(Place(dist.HashStore(), "warm", 0, 1, "", 60.0, device, lambda: ""))
        threading.Thread(target=self.abort, args=(inner,), name="onward-abort", daemon=True).start()

    def mark(self, works: list[Any]) -> Callable[[], bool]:
        for work in works:
            self.order(work)  # not by work.wait(), which takes a lock that an abort holds for long
        event = torch.cuda.Event()
        event.record()
        return event.query  # type: ignore[no-any-return]

    def finished(self, work: Any) -> bool:
        if not work.is_completed():
            return False
        found = work.get_future_result()  # not work.wait(): after an error that aborts the communicator by itself
        if found.done() and found.value() != SUCCESS:
            raise RuntimeError("NCCL: a collective timed out" if found.value() == TIMED_OUT else LOST)
        return True
