"""Operations of a group, as torch and user code hold them: a wait that can always be ended, and what comes after it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist

from onward.train.backends import Backend
from onward.train.generation import Generation
from onward.train.latch import Latch
from onward.train.operations import IN_PLACE

if TYPE_CHECKING:
    from onward.train.group import Group


class Entry(Protocol):
    """Where a result goes that one who follows this rank is to be told. See `feed`."""

    def fill(self, result: Any) -> None: ...

    def fail(self) -> None: ...


class OutsideStep(Protocol):
    """Collectives between steps are not unwound: a recovery takes place inside their wait, then they run again."""

    def replay(self, op: str, result: Any) -> bool:
        """Fill in the result of an operation that the others have behind them; False when it must really run."""

    def record(self, op: str, result: Any) -> None:
        """Keep the result of an operation for a rank that must catch up."""

    def recover(self) -> None:
        """Stand at the fence here, and return in a new generation."""


class GroupWork(dist.Work):
    """An operation under way whose wait can always be ended."""

    def __init__(self, group: Group, generation: Generation, backend: Backend, inner: Any, tensors: Any) -> None:
        super().__init__()
        self.number = 0
        self.launched_at = time.monotonic()
        self._owner = group._owner
        self._group = group
        self.lane: object = group  # in `device_queue`
        self._generation = generation
        self.inner = inner
        self._backend = backend
        self._late = backend.late  # on a device: see `device_queue`
        self._tensors = tensors
        self._lock = threading.Lock()
        self._event = Latch()
        self._ended_ns = 0
        self._future: torch.futures.Future[Any] | None = None
        self.failed = False
        self.log: Callable[[Any], None] | None = None
        self.again: Again | None = None
        self.refused = False  # could not even be launched
        self.between_two = False  # of all ranks, only two know of it
        self._entry: Entry | None = None  # somebody follows, and is to be told the result

    def begin(self) -> None:
        if self._late:
            self._generation.enqueue(self)
            self._event.set()
            return
        in_time = self._generation.add(self)
        try:
            future = self.inner.get_future()
        except RuntimeError:
            future = None  # gloo's send and recv have none
        if future is not None:
            future.add_done_callback(lambda f: self._on_done(f.value))
        else:
            threading.Thread(target=self._on_done, args=(self.inner.wait,), daemon=True).start()
        if not in_time:
            self.finish(failed=True)

    def _on_done(self, result: Callable[[], Any]) -> None:
        try:
            result()
            failed = False
        except Exception as e:  # each library raises its own
            self._generation.fail(str(e))
            failed = True
        self._generation.ended(self)
        self.finish(failed)

    def finish(self, failed: bool) -> None:
        with self._lock:
            if self._event.is_set():
                return
            self.failed = failed
            if failed:
                self._generation.broken = True
            if self._entry is not None:  # before anybody here can see the result, and change it
                self._tell(self._entry)
            self._ended_ns = time.monotonic_ns()
            self._event.set()
            future = self._future
        self._owner.completed(self._generation, self)
        if future is not None:
            future.set_result(self._tensors)

    def tell(self, entry: Entry) -> None:
        """Let one that follows this rank know the result, when it is there."""
        with self._lock:
            if not self._event.is_set():
                self._entry = entry
                return
        self._tell(entry)

    def _tell(self, entry: Entry) -> None:
        if self.failed:
            entry.fail()
        else:
            entry.fill(self._tensors)

    def linger(self, limit_s: float | None = None) -> None:
        """Until it has ended, well or not."""
        if not self._event.is_set():
            since = time.monotonic_ns()
            self._event.wait(limit_s)
            self._owner.waits.waited(since, self._ended_ns)  # until we could have gone on, not until there was room

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self.linger(timeout.total_seconds() or None)
        if not self._event.is_set():
            raise RuntimeError(f"Timed out waiting {timeout.total_seconds() * 1000:g}ms for a collective")
        if self._late and not self.failed:
            # In a step the gate will look. Elsewhere nobody would, so the wait is a real one.
            self.failed = self._generation.broken if self._owner.gated else not self._owner.drain(self._generation)
        if self.failed:
            if self.again is None:
                self._owner.unwind(self._generation)
            else:
                self.again.run(self._group, self._tensors)
        elif self._late:
            with self._owner.device_time.waiting():
                self._backend.order(self.inner)
        elif self._owner.accelerated:
            self.inner.wait()  # the same, and gloo has ended it
        log, self.log, self.failed = self.log, None, False
        if log is not None:
            log(self._tensors)
        return True

    def done(self) -> bool:
        """Wait to the end; True when the result is there."""
        self._event.wait()
        return not self.failed and (not self._late or self._owner.drain(self._generation))

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._event.is_set() and self not in self._generation.queue

    def is_success(self) -> bool:
        return self.is_completed() and not self.failed

    def exception(self) -> Any:
        return None

    def result(self) -> Any:
        return self._tensors

    def get_future(self) -> Any:
        if self._late and self.inner is not None:
            return self.inner.get_future()  # complete already, and ordered by the streams
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future(devices=self._owner.devices) if self._owner.accelerated else (
                    torch.futures.Future()
                )
                done = self._event.is_set()
            else:
                done = False
        if done:
            self._future.set_result(self._tensors)
        return self._future


class Again:
    """What is needed to run an operation once more: its arguments, and its inputs as they were."""

    def __init__(self, outside: OutsideStep, op: str, args: tuple[Any, ...]) -> None:
        self._outside = outside
        self._op = op
        self._args = args
        tensors = args[0] if op in IN_PLACE and args and isinstance(args[0], list) else []
        self._saved = [(t, t.detach().clone()) for t in tensors]

    def run(self, group: Group, result: Any) -> None:
        """Recover, then launch and wait, until it works."""
        while True:
            self._outside.recover()
            with torch.no_grad():
                for t, copy in self._saved:
                    t.detach().copy_(copy)
            if self._outside.replay(self._op, result):
                return
            work = group.launch(self._op, result, self._args)
            if work.done():
                return


class DoneWork(dist.Work):
    """An operation that needed nobody else."""

    def __init__(self, tensors: Any) -> None:
        super().__init__()
        self._tensors = tensors

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> Any:
        return None

    def result(self) -> Any:
        return self._tensors

    def get_future(self) -> Any:
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._tensors)
        return future


class _Together(dist.Work):
    """Several operations that torch holds as one."""

    def __init__(self, works: list[dist.Work]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        for work in self._works:
            work.wait(timeout)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> Any:
        return None

    def result(self) -> Any:
        return [tensor for work in self._works for tensor in flat(work.result())]

    def get_future(self) -> Any:
        return torch.futures.collect_all([work.get_future() for work in self._works]).then(lambda _: self.result())


def flat(result: Any) -> list[Any]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def together(works: list[dist.Work]) -> dist.Work:
    return works[0] if len(works) == 1 else _Together(works)
