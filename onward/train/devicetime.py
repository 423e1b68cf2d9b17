"""How long a rank computes in a step where a device does the computing, by the device's own clock.

The host only launches, so what it sees says little. Marks are put into the streams instead, and read a step later when
the device has passed them: nobody waits for them. A step lasts from the mark at its beginning to the one at its end,
also while the device has nothing to do because its host is slow. Taken off is what its stream stood still for others:

- a wait that goes through our own code has a mark on either side;
- DDP waits inside C++. Then it is the time from the launch of the last operation, as of which this rank's part is
  there, to its end, which a mark in a stream aside tells. What was launched before it overlaps with computing, and is
  not taken off. Which will be the last is known from the block before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class _Marks:
    """What one step has left in the streams."""

    first: Any
    stalls: list[tuple[Any, Any]] = field(default_factory=list)
    last: Any = None

    def all(self) -> list[Any]:
        return [self.first, self.last, *(mark for stall in self.stalls for mark in stall)]


class DeviceTime:
    """Of one process. Does nothing outside a step, nor where there is no device (`runtime` is None)."""

    def __init__(self, runtime: Any = None) -> None:
        self._runtime = runtime  # torch's module for the device
        self._aside: Any = None  # a stream in which nothing is computed
        self._step: _Marks | None = None
        self._passed: _Marks | None = None  # the step before it
        self._host_waited_ns = 0  # in that
        self._launches = self._usual = 0  # of operations in this block, and in the one before
        self._ready: Any = None  # this rank's part in the last operation is there
        self._pending: tuple[Any, Any] | None = None  # that operation, which nobody has waited for yet

    def begin(self) -> None:
        """The block begins."""
        self._step = self._pending = None
        self._launches = 0
        if self._runtime is None:
            return
        with self._giving_up():
            self._step = _Marks(self._mark())

    def launching(self) -> None:
        """An operation is about to be launched."""
        self._ready = self._pending = None
        self._launches += 1
        if self._step is not None and self._launches >= self._usual:
            with self._giving_up():
                self._ready = self._mark()

    def launched(self, order: Callable[[], None]) -> None:
        """It is launched; `order` lets the current stream wait for it."""
        if self._step is None or self._ready is None:
            return
        with self._giving_up():
            if self._aside is None:
                self._aside = self._runtime.Stream()
            with self._runtime.stream(self._aside):
                order()
                self._pending = (self._ready, self._mark())

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around what lets the stream wait for an operation."""
        step, before, self._pending = self._step, None, None
        if step is not None:
            with self._giving_up():
                before = self._mark()
        yield
        if step is not None and before is not None:
            with self._giving_up():
                step.stalls.append((before, self._mark()))

    def surfaced(self) -> None:
        """Whatever was launched is waited for here, if it was not before."""
        if self._step is not None and self._pending is not None:
            self._step.stalls.append(self._pending)
        self._pending = None

    def end(self, waited_ns: int) -> int:
        """The block has ended; its host has waited for others for so long. How many nanoseconds the step *before* it
        has computed, 0 where that is not known."""
        self.surfaced()
        passed, self._passed = self._passed, None
        found = 0
        with self._giving_up():
            if passed is not None and all(mark.query() for mark in passed.all()):
                stood_ms = sum(max(0.0, a.elapsed_time(b)) for a, b in passed.stalls)
                found = max(1, int((passed.first.elapsed_time(passed.last) - stood_ms) * 1e6) - self._host_waited_ns)
            if self._step is not None:
                self._step.last = self._mark()
                self._passed = self._step
        self._step, self._usual = None, self._launches
        self._host_waited_ns = waited_ns
        return found

    def _mark(self) -> Any:
        mark = self._runtime.Event(enable_timing=True)
        mark.record()
        return mark

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        """A device that is out of order says so in the script's own next call, where an error is understood."""
        try:
            yield
        except RuntimeError:
            self._step = self._passed = self._pending = None
