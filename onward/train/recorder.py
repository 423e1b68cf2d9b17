"""Results of the collectives before the first step, kept so that a spare can run the same set-up alone.

What DDP exchanges when it wraps a model is not kept: it is state, and state is loaded anyway.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from onward.errors import StateError
from onward.log import get_logger
from onward.train.link import Link
from onward.train.results import fill, keep
from onward.wire.messages import Recorded

log = get_logger("onward.train")
LIMIT_BYTES = 64 << 20


class Recorder:
    """Writes the log in a first rank, reads it in a spare."""

    def __init__(self, link: Link, logged: list[bytes], spare: bool) -> None:
        self._link = link
        self._log = logged
        self._spare = spare
        self._index = 0
        self._bytes = 0
        self.problem = ""

    def note(self, op: str) -> Callable[[Any], None] | None:
        """A function that records the result of `op` once it is there; None when it need not be kept."""
        if self._spare or inside_wrapper():
            return None
        index = self._index
        self._index += 1

        def record(tensors: Any) -> None:
            data = keep(op, tensors)
            self._bytes += len(data)
            if self._bytes > LIMIT_BYTES:
                if not self.problem:
                    self.problem = "too much is exchanged before the first step to be kept for a replacement"
                    log.warning("%s (over %d MB)", self.problem, LIMIT_BYTES >> 20)
                return
            self._link.send(Recorded(scope="setup", index=index, data=data))

        return record

    def replay(self, op: str, tensors: Any) -> None:
        """In a spare: put the recorded result of `op` into `tensors`."""
        if inside_wrapper():
            return
        index = self._index
        self._index += 1
        if index >= len(self._log) or not self._log[index]:
            self.problem = f"collective {index} ({op}) before the first step was not recorded"
            return
        try:
            fill(op, tensors, self._log[index])
        except StateError as e:
            self.problem = f"collective {index} before the first step: {e}"


def inside_wrapper() -> bool:
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.nn.parallel.distributed":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
