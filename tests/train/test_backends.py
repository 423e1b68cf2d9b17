"""Operations that only seem to have ended, as NCCL's do: nothing may count before they really have.

The fake has the production interface and a device whose kernels end when the test says so. Its tensors are torch's
`meta` ones, so that they are told from those of the CPU, which go to a real gloo.
"""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from waiting import until  # noqa: E402

from onward.errors import Unwind, UsageError  # noqa: E402
from onward.train.backends import ALL, Backend, choose, pick_device  # noqa: E402
from onward.train.backends.base import Place, call_unless_left  # noqa: E402
from onward.train.backends.gloo import INTERFACE, Gloo, door_of  # noqa: E402
from onward.train.generation import Generation  # noqa: E402
from onward.train.group import Group  # noqa: E402
from onward.train.groups import Groups  # noqa: E402

pytestmark = pytest.mark.torch


class Kernel:
    """An operation in a stream. `end` is set by the test, or by an abort."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.error = ""
        self.ordered = 0

    def get_future(self):
        future = torch.futures.Future()
        future.set_result(None)
        return future


class Communicator:
    def __init__(self) -> None:
        self.kernels: list[Kernel] = []

    def allreduce(self, tensors, opts) -> Kernel:
        assert opts.asyncOp, "torch's NCCL gives no work for a synchronous operation"
        self.kernels.append(Kernel())
        return self.kernels[-1]


class Fake(Backend):
    name, device, late = "fake", "meta", True

    def __init__(self) -> None:
        self.inners: list[Communicator] = []
        self.may_be_freed = threading.Event()
        self.may_be_freed.set()
        self.aborted: list[Communicator] = []

    def connect(self, place: Place) -> Communicator:
        self.inners.append(Communicator())
        return self.inners[-1]

    def abort(self, inner: Communicator) -> None:
        for kernel in inner.kernels:
            kernel.end.set()  # kernels return at once; freeing the rest takes longer
        self.may_be_freed.wait()
        self.aborted.append(inner)

    def order(self, work: Kernel) -> None:
        work.ordered += 1

    def mark(self, works):
        return lambda: all(w.end.is_set() for w in works)

    def finished(self, work: Kernel) -> bool:
        if work.error:
            raise RuntimeError(work.error)
        return work.end.is_set()

    @property
    def kernels(self) -> list[Kernel]:
        return self.inners[-1].kernels


class Desk:
    """Groups of one rank, and what they told the status page."""

    def __init__(self, fake: Fake) -> None:
        self.fake = fake
        self.oldest: list[float] = []
        self.groups = Groups(dist.HashStore(), "127.0.0.1", 30.0)
        self.groups.backends = (ALL["gloo"], fake)
        self.groups.generation = Generation(1)
        self.groups.on_complete = lambda generation, oldest: self.oldest.append(oldest)
        self.groups.gated = True
        self.group = Group(self.groups, "world", 0, 1, (0,), 1)

    @property
    def generation(self) -> Generation:
        return self.groups.generation

    def reduce(self):
        return self.group.allreduce([torch.empty(4, device="meta")])

    def drain_aside(self) -> tuple[threading.Thread, list[bool]]:
        out: list[bool] = []
        thread = threading.Thread(target=lambda: out.append(self.groups.drain(self.generation)), daemon=True)
        thread.start()
        return thread, out


@pytest.fixture
def desk():
    return Desk(Fake())


def test_tensors_find_their_backend(desk):
    ones = torch.ones(3)
    assert desk.group.allreduce([ones]).wait()
    assert desk.fake.kernels == []
    desk.reduce()
    assert len(desk.fake.kernels) == 1
    outputs = [[torch.zeros(3)]]
    desk.group.allgather(outputs, [ones]).wait()
    assert torch.equal(outputs[0][0], ones)
    assert len(desk.fake.kernels) == 1


def test_in_a_step_a_wait_only_orders_and_the_gate_waits_for_the_end(desk):
    work = desk.reduce()
    assert work.wait()
    assert desk.fake.kernels[0].ordered == 1
    assert not work.is_completed()
    assert work.get_future().done()
    thread, out = desk.drain_aside()
    thread.join(0.1)
    assert thread.is_alive(), "the gate must not pass while a kernel runs"
    desk.fake.kernels[0].end.set()
    thread.join(10)
    assert out == [True]
    assert work.is_completed()
    assert not desk.generation.broken


def test_a_kernel_that_an_abort_ended_has_no_result(desk):
    desk.reduce()
    thread, out = desk.drain_aside()
    thread.join(0.05)
    desk.generation.abort("rank 1 died")
    thread.join(10)
    assert out == [False]
    assert desk.fake.kernels[0].end.is_set()
    assert desk.generation.broken
    with pytest.raises(Unwind, match="rank 1 died"):
        desk.reduce()


def test_a_wait_after_the_failure_unwinds(desk):
    work = desk.reduce()
    desk.generation.fail("rank 1 died")
    with pytest.raises(Unwind):
        work.wait()


def test_what_had_ended_before_the_failure_stays(desk):
    desk.reduce()
    desk.fake.kernels[0].end.set()
    assert desk.groups.drain(desk.generation)
    desk.generation.abort("rank 1 died")
    assert not desk.generation.broken, "the step may still be committed: all its collectives had ended well"


def test_a_kernel_launched_into_a_failing_generation_has_no_result(desk):
    launch = desk.fake.inners[-1].allreduce

    def failing_meanwhile(tensors, opts):
        desk.generation.fail("rank 1 died")
        return launch(tensors, opts)

    desk.fake.inners[-1].allreduce = failing_meanwhile
    desk.reduce()
    assert desk.generation.broken


def test_a_slow_abort_holds_nobody_up_and_its_group_is_kept(desk):
    desk.fake.may_be_freed.clear()
    desk.reduce()
    desk.generation.abort("rank 1 died")
    desk.generation.abort("again")
    desk.groups.settle()
    old = desk.generation
    assert old.stuck
    desk.groups.open(2)
    assert len(desk.fake.inners) == 2
    work = desk.reduce()
    desk.fake.kernels[0].end.set()
    assert desk.groups.drain(desk.generation)
    assert work.is_completed()
    assert old.stuck, "nobody has waited for it so far"
    desk.fake.may_be_freed.set()
    until(lambda: not old.stuck, "the abort has come to its end")
    assert desk.fake.aborted == desk.fake.inners[:1], "aborted once, whoever asked how often"


def test_the_fence_waits_for_a_device_that_must_be_started_again():
    fake = Fake()
    fake.slow_release = True
    fake.may_be_freed.clear()
    desk = Desk(fake)
    desk.reduce()
    desk.generation.abort("rank 1 died")
    thread = threading.Thread(target=desk.groups.settle, daemon=True)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    fake.may_be_freed.set()
    thread.join(30)
    assert not thread.is_alive()
    assert fake.aborted


def test_the_fence_waits_for_a_kernel_that_no_abort_ends(desk):
    desk.fake.abort = lambda inner: None
    desk.reduce()
    desk.generation.abort("rank 1 died")
    thread = threading.Thread(target=desk.groups.settle, daemon=True)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive(), "state must not be restored under a kernel that may still write"
    desk.fake.kernels[0].end.set()
    thread.join(10)
    assert not thread.is_alive()


def test_a_hang_is_told_from_what_has_ended_not_from_what_was_launched(desk):
    first, second = desk.reduce(), desk.reduce()
    assert desk.oldest == []
    desk.fake.kernels[0].end.set()
    until(lambda: desk.oldest, "the watching thread has seen the end of the first")
    assert desk.oldest[-1] == second.launched_at, "seen by the watching thread: nobody drained"
    assert first.is_completed()
    assert not second.is_completed()


def test_an_error_that_only_the_library_knows_ends_the_wait(desk):
    desk.reduce()
    thread, out = desk.drain_aside()
    thread.join(0.05)
    desk.fake.kernels[0].error = "NCCL error: remote process exited or there was a network error"
    thread.join(10)
    assert out == [False]
    assert "remote process exited" in desk.generation.failed


def test_outside_a_step_a_wait_is_a_real_one(desk):
    desk.groups.gated = False
    work = desk.reduce()
    waited: list[bool] = []
    thread = threading.Thread(target=lambda: waited.append(work.wait()), daemon=True)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    desk.fake.kernels[0].end.set()
    thread.join(10)
    assert waited == [True]


class Recovery:
    """Stands in for the fence: opens the next generation, in which kernels end well."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.recovered = 0

    def replay(self, op, result) -> bool:
        return False

    def record(self, op, result) -> None:
        pass

    def recover(self) -> None:
        self.recovered += 1
        self.desk.groups.open(2)
        launch = self.desk.fake.inners[-1].allreduce

        def ends(tensors, opts):
            kernel = launch(tensors, opts)
            kernel.end.set()
            return kernel

        self.desk.fake.inners[-1].allreduce = ends


def test_outside_a_step_an_aborted_operation_runs_again(desk):
    desk.groups.gated = False
    desk.groups.outside = recovery = Recovery(desk)
    threading.Timer(0.05, desk.generation.abort, ["rank 1 died"]).start()
    work = desk.reduce()
    assert recovery.recovered == 1, "there it has ended when it returns"
    assert work.wait()
    assert recovery.recovered == 1


def test_the_gate_asks_about_the_last_of_each_lane(desk):
    for _ in range(3):
        desk.reduce()
    asked: list[Kernel] = []
    mark = desk.fake.mark
    desk.fake.mark = lambda works: (asked.extend(works), mark(works))[1]
    for kernel in desk.fake.kernels:
        kernel.end.set()
    assert desk.groups.drain(desk.generation)
    assert asked == desk.fake.kernels[-1:], "a communicator ends its operations in order"
    assert not desk.generation.queue


def test_a_barrier_waits_for_the_device_first(desk):
    desk.reduce()
    thread = threading.Thread(target=lambda: desk.group.barrier().wait(), daemon=True)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    desk.fake.kernels[0].end.set()
    thread.join(10)
    assert not thread.is_alive()


def test_a_connection_that_nobody_answers_is_left_with_its_generation():
    generation = Generation(1)
    forever = threading.Event()
    place = Place(dist.HashStore(), "1/world", 0, 2, "127.0.0.1", 30.0, torch.device("cpu"), lambda: generation.failed)
    threading.Timer(0.05, generation.abort, ["rank 1 died"]).start()
    with pytest.raises(RuntimeError, match="left while connecting: rank 1 died"):
        call_unless_left(forever.wait, place)
    with pytest.raises(ValueError, match="no such key"):
        call_unless_left(lambda: _raise(ValueError("no such key")), place)
    forever.set()


def test_a_gloo_group_that_cannot_be_complete_any_more_is_left_with_its_generation():
    """A member that dies while the others connect leaves them inside gloo, which waits for its whole timeout."""
    generation = Generation(1)
    place = Place(dist.HashStore(), "1/world", 0, 2, "127.0.0.1", 5.0, torch.device("cpu"), lambda: generation.failed)
    threading.Timer(0.05, generation.abort, ["rank 1 died"]).start()
    with pytest.raises(RuntimeError, match="left while connecting: rank 1 died"):
        Gloo().connect(place)


def _raise(error: Exception) -> None:
    raise error


def test_the_default_backend(monkeypatch):
    def names(device, local_rank, local_world, wanted=None):
        return [b.name for b in choose(wanted, torch.device(device), local_rank, local_world)]

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert names("cpu", 0, 4) == ["gloo"]
    assert names("cuda:1", 1, 2) == ["gloo", "nccl"]
    assert names("cuda:0", 2, 4) == ["gloo"], "four ranks on two GPUs: NCCL refuses to share"
    assert names("cuda:0", 1, 2) == ["gloo"], "the script has put both ranks on one GPU"
    assert names("cuda:0", 1, 2, "nccl") == ["gloo", "nccl"]
    assert names("cuda:1", 1, 2, "gloo") == ["gloo"]
    with pytest.raises(UsageError, match="did you mean 'nccl'"):
        names("cuda:0", 0, 1, "ncl")
    with pytest.raises(UsageError, match="carries cuda tensors"):
        names("cpu", 0, 1, "nccl")


def test_the_device_that_was_asked_for():
    assert pick_device("cpu", 3) == torch.device("cpu")


def test_the_interface_that_the_user_names_is_the_one_that_gloo_connects_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(INTERFACE, raising=False)
    assert door_of("10.9.8.7") == "10.9.8.7"
    monkeypatch.setenv(INTERFACE, "lo,other")
    assert door_of("10.9.8.7") == "127.0.0.1"
    monkeypatch.setenv(INTERFACE, "absent0")
    assert door_of("127.0.0.1") == "127.0.0.1", "nobody else calls there"
    with pytest.raises(RuntimeError, match=r"GLOO_SOCKET_IFNAME=absent0: no interface .* there are .*lo"):
        door_of("10.9.8.7")
