"""The state in huge pages, where the kernel has them: 2 MB at a time instead of 4 KB.

A replacement reads the memory of a living rank, and the kernel looks up every page of it on the way; and it says that a
process has ended only when it has taken back all of its pages. Both take a recovery's time, by the page: with huge ones
the same gigabyte is read three times as fast, and freed ten times as fast. Training itself goes on as before. Done once
in each process, aside, when the state has its place.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

HUGE = 2 << 20
_GAP = 64 << 10  # between two tensors of one mapping: the allocator's own
_PART = 32 << 20  # the training waits while the kernel is at it
_MADV_COLLAPSE = 25  # since Linux 6.1
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_libc = ctypes.CDLL(None, use_errno=True)


class HugePages:
    """Of one process."""

    def __init__(self) -> None:
        self._settled = False

    def settle(self, tensors: Callable[[], Iterable[torch.Tensor]]) -> None:
        """Begin, once, to put them into huge pages. Their numbers and their addresses stay."""
        if self._settled:
            return
        self._settled = True
        found = ranges(tensors())
        if found and _are_wanted():
            threading.Thread(target=collapse, args=(found,), name="onward-pages", daemon=True).start()


def ranges(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """From where to where whole huge pages can hold them."""
    held = {
        (storage.data_ptr(), storage.data_ptr() + storage.nbytes())
        for storage in (t.untyped_storage() for t in tensors if t.device.type == "cpu" and t.layout is torch.strided)
        if storage.nbytes()
    }
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(held):
        if joined and begin <= joined[-1][1] + _GAP:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    whole = [(-(-begin // HUGE) * HUGE, end // HUGE * HUGE) for begin, end in joined]
    return [(begin, end) for begin, end in whole if begin < end]


def collapse(found: Iterable[tuple[int, int]]) -> bool:
    """Where the kernel does not want to, all stays as it is; False then."""
    parts = [(at, min(_PART, end - at)) for begin, end in found for at in range(begin, end, _PART)]
    done = [_libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(size), _MADV_COLLAPSE) == 0 for at, size in parts]
    return all(done)


def _are_wanted() -> bool:
    """Whoever runs this machine may have ruled them out."""
    try:
        return "[never]" not in _SETTING.read_text()
    except OSError:
        return False
