"""HCCL: Ascend NPUs, one for each rank. Written from the public interface of torch_npu and **never run**.

It works as NCCL does (operations are queued, their end is an event), but a stuck operation is ended by stopping the
device, which then has to be started again before anything can be queued.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch

from onward.train.backends.base import Backend, Place, call_unless_left

SETTINGS = {"HCCL_ASYNC_ERROR_HANDLING": "0"}  # its watchdog would end the process


class Hccl(Backend):
    """The backend of Ascend devices."""

    name = "hccl"
    device = "npu"
    late = True
    slow_release = True

    def __init__(self) -> None:
        self._index = 0

    def connect(self, place: Place) -> Any:
        import torch_npu

        os.environ.update(SETTINGS)
        kind = torch_npu._C._distributed_c10d.ProcessGroupHCCL
        options = kind.Options()
        options._timeout = timedelta(seconds=place.timeout_s)
        inner = kind(place.store, place.rank, place.size, options)
        self._index = place.device.index or 0

        def first() -> None:
            torch_npu.npu.set_device(self._index)
            # The communicator is built by the first operation: now, while all members are here.
            inner.allreduce([torch.zeros(1, device=place.device)]).wait()
            torch_npu.npu.current_stream().synchronize()

        call_unless_left(first, place)
        return inner

    def abort(self, inner: Any) -> None:
        import torch_npu

        torch_npu.npu.set_device(self._index)
        torch_npu.npu.stop_device(self._index)
        inner.abort_hccl_comm("onward")
        torch_npu.npu.restart_device(self._index)

    def finished(self, work: Any) -> bool:
        if not work.is_completed():
            return False
        work.wait()
        return True
