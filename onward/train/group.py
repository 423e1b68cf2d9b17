"""Process groups that can be interrupted and rebuilt in place, under wrappers that never notice.

A `Group` is what DDP, DeviceMesh and user code hold. It owns an inner group of the current generation for each backend
of the run (gloo for CPU tensors, NCCL or HCCL for a device's), and forwards to them. When the generation ends they are
aborted: everyone blocked in them wakes up, and the next generation gives the same `Group` new ones. Three
rules, each learnt the hard way:

- a wait is on an event of our own, because a gloo thread in a blocking wait can miss the wake-up;
- an aborted operation completes its future *normally*: an exception there crashes DDP's reducer. So the generation is
  marked failed first, and nobody applies an update without asking it;
- what belongs to a generation (failure mark, pending operations, connections) is never shared with the next one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import PrefixStore, ProcessGroup

from onward.errors import Unwind
from onward.log import get_logger
from onward.train.backends import ALL, Backend, Place
from onward.train.device_queue import DeviceQueue
from onward.train.latch import Latch
from onward.train.loopback import answer
from onward.train.sockets import Connections, open_sockets
from onward.train.waits import Waits

log = get_logger("onward.train")
ABORT_GRACE_S = 0.02  # gloo's time to end an operation whose sockets were shut, before we end it ourselves
WATCH_S = 0.05  # how often operations on a device are looked at while nobody waits for them


class Generation:
    """One membership of the process group, as seen by one rank."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.failed = ""  # why; set before anything that was waiting is released
        self.broken = False  # an operation ended without its result
        self._lock = threading.Lock()
        self._pending: dict[int, GroupWork] = {}  # somebody may wait for these
        self._inside: set[int] = set()  # and these gloo has not ended, whatever we told whoever waited
        self._connections: list[Connections] = []
        self._aborters: list[tuple[Backend, Any]] = []
        self._aborting: list[threading.Thread] = []
        self.queue = DeviceQueue()
        self._count = 0
        self._over = False  # aborted: nothing that begins now will ever end by itself

    def fail(self, why: str) -> None:
        with self._lock:
            if not self.failed:
                self.failed = why
        if self.queue:
            self.broken = True

    def add(self, work: GroupWork) -> bool:
        """False when the generation was aborted while the operation was being launched."""
        with self._lock:
            self._count += 1
            work.number = self._count
            self._inside.add(work.number)
            if not self._over:
                self._pending[work.number] = work
            return not self._over

    def enqueue(self, work: GroupWork) -> None:
        """`work` is on the device: it counts as answered, but not as ended."""
        with self._lock:
            self._count += 1
            work.number = self._count
        self.queue.put(work)
        if self.failed:
            self.broken = True

    def ended(self, work: GroupWork) -> None:
        with self._lock:
            self._inside.discard(work.number)

    def remove(self, work: GroupWork) -> float:
        """Returns the launch time of the oldest operation still pending, 0 when there is none."""
        with self._lock:
            self._pending.pop(work.number, None)
            if not self.queue:
                return next((w.launched_at for w in self._pending.values()), 0.0)  # they stand in the order of launch
        return self.oldest()

    def oldest(self) -> float:
        with self._lock:
            launched = [w.launched_at for w in self._pending.values()]
        return min((*launched, *(w.launched_at for w in self.queue.works())), default=0.0)

    @property
    def stuck(self) -> bool:
        """An operation, or an abort, is still inside a library: destroying its group now would block."""
        return bool(self._inside) or self.aborting

    @property
    def aborting(self) -> bool:
        return any(t.is_alive() for t in self._aborting)

    def guard(self, connections: Connections | None, backend: Backend, inner: Any) -> None:
        with self._lock:
            if connections is not None:
                self._connections.append(connections)
            self._aborters.append((backend, inner))

    def drop_connections(self) -> int:
        with self._lock:
            connections = list(self._connections)
        return sum(c.shut() for c in connections)

    def abort(self, why: str) -> None:
        """Wake everybody who waits in this generation. Safe from any thread, any number of times."""
        self.fail(why)
        with self._lock:
            connections = list(self._connections)
            aborters, self._aborters = self._aborters, []
        for c in connections:
            c.shut()
        for backend, inner in aborters:
            if backend.late:
                # Aside: it can take a second, and this may be the thread that tells the agent that we are alive.
                thread = threading.Thread(target=_abort, args=(backend, inner), name="onward-abort", daemon=True)
                self._aborting.append(thread)
                thread.start()
            else:
                backend.abort(inner)
        deadline = time.monotonic() + ABORT_GRACE_S
        while self._pending and time.monotonic() < deadline:
            time.sleep(0.001)
        with self._lock:
            self._over = True
            left = list(self._pending.values())
        for work in left:
            work.finish(failed=True)


def _abort(backend: Backend, inner: Any) -> None:
    try:
        backend.abort(inner)
    except RuntimeError as e:
        log.info("aborting %s: %s", backend.name, e)


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
        except Exception as e:
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

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if not self._event.is_set():
            since = time.monotonic_ns()
            self._event.wait(timeout.total_seconds() or None)
            self._owner.waits.waited(since, self._ended_ns)  # until we could have gone on, not until there was room
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
        tensors = args[0] if op in _IN_PLACE and args and isinstance(args[0], list) else []
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


class Groups:
    """All groups of this process and the generation they belong to. One per process."""

    def __init__(self, store: dist.Store, address: str, timeout_s: float) -> None:
        self.store = store
        self.address = address
        self.timeout_s = timeout_s
        self.generation = Generation(0)
        self.alone = False  # loop-back: a spare, or a rehearsal
        self.backends: tuple[Backend, ...] = (ALL["gloo"],)
        self.gated = False  # in a step: what is on the device is looked at before it counts
        self.accelerated = False
        self.devices: list[Any] = []
        self.present: frozenset[int] = frozenset()  # ranks of the generation; empty: all
        self.members: list[Group] = []
        self.before_launch: Callable[[Group, str, Any], Any] | None = None
        self.on_complete: Callable[[Generation, float], None] | None = None
        self.on_unwind: Callable[[str], None] | None = None
        self.outside: OutsideStep | None = None  # set while a failed operation is to be launched again
        self._graveyard: list[tuple[Generation, list[Any]]] = []
        self.skip_next = False  # injected: leave out the next collective
        self.tap: Callable[[str], Entry | None] | None = None  # somebody follows this rank
        self.told: Callable[[str, Any], bool] | None = None  # this process follows: results come from another
        self.waits = Waits()
        self._watching = False

    @property
    def device_backend(self) -> Backend | None:
        """The one whose operations end later than they seem to, if the run has such a one."""
        return self.backends[-1] if self.backends[-1].late else None

    def open(self, number: int, members: Sequence[int] = ()) -> None:
        """Leave the current generation for `number` and connect every group anew, among `members` (none: all)."""
        self.present = frozenset(members)
        old = self.generation
        generation = Generation(number)
        inners = [g.detach() for g in self.members]
        self._graveyard.append((old, inners))
        self.generation = generation
        del inners, old
        if self.device_backend is not None:
            self._bury()  # what a device's group holds may be needed for the next one
        self.alone = False
        for group in self.members:
            group.attach(generation)

    def drain(self, generation: Generation, everything: bool = False) -> bool:
        """Wait until all operations of `generation` have really ended; False when one of them has no result.

        `everything`: and what else stands in the current stream.
        """
        backend = self.device_backend
        if backend is not None and (generation.queue or everything) and not generation.broken:
            generation.queue.wait(backend, lambda: generation.broken)
            self._note(generation, generation.oldest())
        return not generation.broken

    def settle(self) -> None:
        """At the fence, after the abort: wait until nothing of the generation runs on the device any more.

        There is no deadline here. The manager has one for reaching the fence, and its cure, a new process, is the only
        one for a device that does not become quiet.
        """
        backend, generation = self.device_backend, self.generation
        if backend is None or self.alone:
            return
        while backend.slow_release and generation.aborting:
            time.sleep(0.001)
        generation.queue.wait(backend, lambda: False)

    def warm(self) -> None:
        """In a spare: have the device's library ready before it is needed."""
        if self.device_backend is None:
            return
        try:
            self.device_backend.warm(self.devices[0])
        except RuntimeError as e:
            log.info("%s could not be warmed up: %s", self.device_backend.name, e)

    def _watch(self) -> None:
        """A thread that notes the end of operations on the device, and their errors, while nobody waits for them."""
        while True:
            time.sleep(WATCH_S)
            generation, backend = self.generation, self.device_backend
            if backend is None or not generation.queue or generation.failed:
                continue
            try:
                if generation.queue.look(backend):
                    self._note(generation, generation.oldest())
            except RuntimeError as e:
                generation.fail(str(e))

    def watch(self) -> None:
        if not self._watching:
            self._watching = True
            threading.Thread(target=self._watch, name="onward-watch", daemon=True).start()

    def bury(self) -> None:
        """Drop the groups of past generations, except where an operation is still inside. Takes milliseconds each, so
        it is done when the job trains again, and aside."""
        if self._graveyard:
            threading.Thread(target=self._bury, name="onward-bury", daemon=True).start()

    def _bury(self) -> None:
        graves, self._graveyard = self._graveyard, []
        self._graveyard += [grave for grave in graves if grave[0].stuck]

    def completed(self, generation: Generation, work: GroupWork) -> None:
        oldest = generation.remove(work)
        if not oldest:
            self.waits.ended()
        self._note(generation, oldest)

    def _note(self, generation: Generation, oldest: float) -> None:
        if generation is self.generation and self.on_complete is not None:
            self.on_complete(generation, oldest)

    def outside_step(self, group: Group) -> OutsideStep | None:
        """How to go on when an operation of `group` fails now: None means back to the fence."""
        return self.outside if group.over_world else None

    def unwind(self, generation: Generation) -> None:
        """Leave the user's code: the operation that it waited for will not come."""
        if self.on_unwind is not None:
            self.on_unwind(generation.failed)
        raise Unwind(generation.failed)


class Group(ProcessGroup):
    """The process group that user code and wrappers hold for life."""

    def __init__(
        self, owner: Groups, name: str, rank: int, size: int, ranks: tuple[int, ...], world_size: int
    ) -> None:
        super().__init__(rank, size)
        self._owner = owner
        self.world_size = world_size
        self._name = name
        self._desc = "onward"
        self._rank, self._size = rank, size
        self.ranks = ranks
        self._me, self._full = ranks[rank], size
        self.over_world = size == world_size
        self._inner: dict[str, tuple[Backend, Any]] = {}  # by the kind of device whose tensors it takes
        owner.members.append(self)
        if not owner.alone:
            self.attach(owner.generation)

    def attach(self, generation: Generation) -> None:
        owner = self._owner
        present = [r for r in self.ranks if not owner.present or r in owner.present]
        self._rank, self._size = present.index(self._me), len(present)
        for backend in owner.backends:
            name = f"{generation.number}/{self._name}/{backend.name}"
            place = Place(
                PrefixStore(name, owner.store),
                name,
                self._rank,
                self._size,
                owner.address,
                owner.timeout_s,
                owner.devices[0] if owner.devices else torch.device("cpu"),
                lambda: generation.failed,
            )
            before = open_sockets() if backend.sockets else None
            inner = backend.connect(place)
            generation.guard(Connections(before) if before is not None else None, backend, inner)
            self._inner[backend.device] = (backend, inner)
            if backend.late:
                owner.watch()

    def detach(self) -> list[Any]:
        inner, self._inner = self._inner, {}
        return list(inner.values())

    def _for(self, op: str, args: tuple[Any, ...]) -> tuple[Backend, Any]:
        """The inner group that takes the tensors of this operation."""
        if len(self._inner) == 1 or op == "barrier":
            return self._inner["cpu"]
        return self._inner.get(_device_type(args), self._inner["cpu"])

    # ------------------------------------------------------------------ what torch asks of a group

    def getBackendName(self) -> str:
        return "onward"

    def name(self) -> str:
        return "onward"

    def getRank(self) -> int:
        return self._rank

    def getSize(self) -> int:
        """What DDP divides by: the mean stays that of the full world, also while some ranks are absent."""
        return self._full

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    @property
    def group_name(self) -> str:
        return self._name

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        return self._desc

    def getGroupDesc(self) -> str:
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    @property
    def _device_types(self) -> list[torch.device]:
        types = [torch.device("cpu")]
        if self._owner.accelerated:
            types.append(torch.device(self._owner.devices[0].type))
        return types

    def _get_backend(self, device: Any) -> Any:
        return self

    def get_group_store(self) -> dist.Store:
        return self._owner.store

    def supports_splitting(self) -> bool:
        return False

    # ------------------------------------------------------------------ operations

    def _run(self, op: str, result: Any, *args: Any) -> dist.Work:
        owner = self._owner
        if owner.told is not None and owner.told(op, result):
            return DoneWork(result)
        if owner.alone:
            answer(op, self._rank, self._size, args)
            recorded = owner.before_launch(self, op, result) if owner.before_launch else None
            return DoneWork(result if recorded is None else recorded)
        outside = owner.outside_step(self)
        if outside is not None and outside.replay(op, result):
            return DoneWork(result)
        if owner.generation.failed and outside is None:
            owner.unwind(owner.generation)
        log = owner.before_launch(self, op, result) if owner.before_launch is not None else None
        if owner.skip_next:
            owner.skip_next = False
            return DoneWork(result)
        again = Again(outside, op, args) if outside is not None else None
        entry = owner.tap(op) if owner.tap is not None else None
        work = self.launch(op, result, args)
        if entry is not None:
            work.tell(entry)
        if outside is not None:
            work.again = again
            work.log = lambda tensors: outside.record(op, tensors)
        else:
            work.log = log
            if work.failed and work.refused:
                owner.unwind(owner.generation)
        return work

    def launch(self, op: str, result: Any, args: tuple[Any, ...]) -> GroupWork:
        """Enter the operation in the current generation."""
        generation = self._owner.generation
        self._owner.waits.launched()
        backend, inner = ALL["gloo"], None
        try:
            if not generation.failed:
                backend, group = self._for(op, args)
                if backend.late and hasattr(args[-1], "asyncOp"):
                    args[-1].asyncOp = True  # for a synchronous operation torch gives nothing to wait for
                inner = getattr(group, op)(*args)
        except RuntimeError as e:
            generation.fail(str(e))
        work = GroupWork(self, generation, backend, inner, result)
        if op in _BETWEEN_TWO:
            work.lane = object()  # on a stream of its own
        if inner is None:
            work.refused = True
            work.finish(failed=True)
        else:
            work.begin()
        return work

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        return self._run("allreduce", tensors, tensors, _options(opts, c10d.AllreduceOptions))

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> dist.Work:
        return self._run("allreduce_coalesced", tensors, tensors, _options(opts, c10d.AllreduceCoalescedOptions))

    def broadcast(self, tensors: Any, opts: Any = None) -> dist.Work:
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        return self._run("broadcast", tensors, tensors, _options(opts, c10d.BroadcastOptions))

    def reduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        return self._run("reduce", tensors, tensors, _options(opts, c10d.ReduceOptions))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        return self._run("allgather", outputs, outputs, inputs, _options(opts, c10d.AllgatherOptions))

    def _allgather_base(self, output: Any, input: Any, opts: Any = None) -> dist.Work:
        return self._run("_allgather_base", output, output, input, _options(opts, c10d.AllgatherOptions))

    all_gather_single = _allgather_base

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        return self._run("allgather_coalesced", outputs, outputs, inputs, _options(opts, c10d.AllgatherOptions))

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> dist.Work:
        return self._run("gather", outputs, outputs, inputs, opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> dist.Work:
        return self._run("scatter", outputs, outputs, inputs, opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        return self._run("reduce_scatter", outputs, outputs, inputs, _options(opts, c10d.ReduceScatterOptions))

    def _reduce_scatter_base(self, output: Any, input: Any, opts: Any = None) -> dist.Work:
        return self._run("_reduce_scatter_base", output, output, input, _options(opts, c10d.ReduceScatterOptions))

    reduce_scatter_single = _reduce_scatter_base

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        return self._run("alltoall", outputs, outputs, inputs, _options(opts, c10d.AllToAllOptions))

    def alltoall_base(self, output: Any, input: Any, out_split: Any, in_split: Any, opts: Any = None) -> dist.Work:
        opts = _options(opts, c10d.AllToAllOptions)
        return self._run("alltoall_base", output, output, input, out_split, in_split, opts)

    all_to_all_single = alltoall_base

    def barrier(self, opts: Any = None) -> dist.Work:
        if self._owner.device_backend is not None and not self._owner.alone:
            # It is gloo's, which knows nothing of streams; that all ranks' devices got here is still what it promises.
            self._owner.drain(self._owner.generation, everything=True)
        return self._run("barrier", [], _options(opts, c10d.BarrierOptions))

    def send(self, tensors: Any, dst: int, tag: int = 0) -> dist.Work:
        return self._run("send", tensors, tensors, dst, tag)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> dist.Work:
        return self._run("recv", tensors, tensors, src, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> dist.Work:
        return self._run("recv_anysource", tensors, tensors, tag)


def _device_type(args: Any) -> str:
    """Of the first tensor among the arguments of an operation."""
    for arg in args:
        if isinstance(arg, torch.Tensor):
            return str(arg.device.type)
        if isinstance(arg, (list, tuple)) and (found := _device_type(arg)):
            return found
    return ""


def _options(opts: Any, kind: type) -> Any:
    return kind() if opts is None else opts


_BETWEEN_TWO = frozenset({"send", "recv", "recv_anysource"})
_IN_PLACE = frozenset({"allreduce", "allreduce_coalesced", "broadcast", "reduce"})
SAME_EVERYWHERE = frozenset(
    {"allreduce", "allreduce_coalesced", "broadcast", "allgather", "_allgather_base", "allgather_coalesced", "barrier"}
)  # operations whose result one rank can tell another

_SYNCING = frozenset(
    {
        "allreduce",
        "allreduce_coalesced",
        "allgather",
        "_allgather_base",
        "allgather_coalesced",
        "reduce_scatter",
        "_reduce_scatter_base",
        "alltoall",
        "alltoall_base",
        "barrier",
    }
)


def is_syncing(op: str) -> bool:
    """True when ending this operation proves that every member has entered it."""
    return op in _SYNCING
