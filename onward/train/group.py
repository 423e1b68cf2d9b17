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

from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import PrefixStore, ProcessGroup

from onward.train.backends import ALL, Backend, Place
from onward.train.fewer import among
from onward.train.generation import Generation
from onward.train.groups import Groups
from onward.train.loopback import answer
from onward.train.operations import BETWEEN_TWO
from onward.train.sockets import Connections, open_sockets
from onward.train.work import Again, DoneWork, GroupWork, together


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
        self._there: list[int] = []  # where those who are present stand among `ranks`
        self._inner: dict[str, tuple[Backend, Any]] = {}  # by the kind of device whose tensors it takes
        owner.members.append(self)
        if not owner.alone:
            self.attach(owner.generation)

    def attach(self, generation: Generation) -> None:
        owner = self._owner
        present = [r for r in self.ranks if not owner.present or r in owner.present]
        self._rank, self._size = present.index(self._me), len(present)
        self._there = [self.ranks.index(r) for r in present]
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
            generation.guard(Connections.since(before) if before is not None else None, backend, inner)
            self._inner[backend.device] = (backend, inner)
            if backend.late:
                owner.watch()

    def adopt(self, inner: dict[str, tuple[Backend, Any]]) -> None:
        """Take over what was connected beforehand (see `ahead`). All ranks are in it."""
        self._rank, self._size = self.ranks.index(self._me), len(self.ranks)
        self._there = list(range(self._size))
        self._inner = inner

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
        return self.rank()

    def getSize(self) -> int:
        """What DDP divides by: the mean stays that of the full world, also while some ranks are absent."""
        return self._full

    def rank(self) -> int:
        return self.ranks.index(self._me) if self._owner.as_whole else self._rank

    def size(self) -> int:
        return self._full if self._owner.as_whole else self._size

    @property
    def me(self) -> int:
        """This rank, as all the world counts."""
        return self._me

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
        outside = owner.outside_step(self) if op not in BETWEEN_TWO else None
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
            work.wait()  # what is run again, or told to a replacement, has the order of the script
            return DoneWork(result)
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
                if backend.late:
                    self._owner.device_time.launching()
                if self._size < self._full:
                    op, args = among(self._there, self._full, op, args, self._owner.as_whole)
                inner = getattr(group, op)(*args)
        except RuntimeError as e:
            generation.fail(str(e))
        work = GroupWork(self, generation, backend, inner, result)
        if op in BETWEEN_TWO:
            work.between_two, work.lane = True, object()  # on a stream of its own
        if inner is None:
            work.refused = True
            work.finish(failed=True)
        else:
            work.begin()
            if backend.late:
                self._owner.device_time.launched(lambda: backend.order(inner))
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

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        """Functional collectives and DTensors come in here; gloo's own takes no list."""
        return together([self._allgather_base(o, i, opts) for o, i in zip(outputs, inputs, strict=True)])

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        return together([self._reduce_scatter_base(o, i, opts) for o, i in zip(outputs, inputs, strict=True)])

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
