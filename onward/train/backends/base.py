"""What a `Group` needs of the library that carries its operations."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")
LOOK_S = 0.02  # how soon a connection that cannot be made any more is given up


@dataclass(frozen=True)
class Place:
    """Where one inner group is to be connected."""

    store: dist.Store
    name: str  # unique in this process, generation included
    rank: int
    size: int
    address: str  # of this rank, for whoever listens
    timeout_s: float
    device: torch.device
    left: Callable[[], str]  # why the generation was left meanwhile; empty as long as it goes on


class Backend(ABC):
    """One library. What is written here is true of one whose operations have ended when their future completes."""

    name = ""
    device = "cpu"  # the kind of tensors that are its own
    sockets = False  # it is interrupted by shutting its connections
    late = False  # its futures complete when the operation is in a stream, not when it has ended
    slow_release = False  # the device is usable only after `abort` has returned

    @abstractmethod
    def connect(self, place: Place) -> Any:
        """The inner group: an object with torch's operations."""

    def warm(self, device: torch.device) -> None:  # noqa: B027 (most have nothing to do)
        """Do alone, in a spare, what the first connection of a process would spend time on."""

    def abort(self, inner: Any) -> None:
        """Release whoever waits in `inner`, on the device too. A late backend's may take its time."""
        inner.abort()

    def order(self, work: Any) -> None:
        """For a late one: order the current stream after `work`. Does not block, and says nothing about its end."""
        work.get_future().wait()  # not by work.wait(), which takes a lock that an abort of NCCL's holds for long

    @property
    def runtime(self) -> Any:
        """Torch's module for the device, with its streams and events."""
        return getattr(torch, self.device)

    def mark(self, works: list[Any]) -> Callable[[], bool]:
        """For a late one: a question that never blocks, true once `works` and the current stream have ended."""
        for work in works:
            self.order(work)
        event = self.runtime.Event()
        event.record()
        return event.query  # type: ignore[no-any-return]

    def finished(self, work: Any) -> bool:
        """For a late one: has `work` ended? RuntimeError when it failed. May block: never asked in the main thread."""
        return True


def call_unless_left(call: Callable[[], T], place: Place) -> T:
    """What a call gives that no one can interrupt. It is left behind when the generation is left.

    A member that dies while its communicator is being built leaves the others inside the library for good. Its thread
    keeps what it needs alive.
    """
    done = threading.Event()
    found: list[T] = []
    error: list[BaseException] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as e:
            error.append(e)
        done.set()

    threading.Thread(target=run, name="onward-connect", daemon=True).start()
    while not done.wait(LOOK_S):
        if place.left():
            raise RuntimeError(f"left while connecting: {place.left()}")
    if error:
        raise error[0]
    return found[0]
