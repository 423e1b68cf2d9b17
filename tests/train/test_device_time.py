"""How long a rank computes on a device, with a device whose streams are times that the test moves on."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from onward.train.devicetime import DeviceTime

MS = 1_000_000


class Stream:
    """`at`: when what stands in it so far has ended, in milliseconds."""

    def __init__(self) -> None:
        self.at = 0.0


class Device:
    """Stands for torch.cuda: marks take the time of the stream that they are put into."""

    def __init__(self) -> None:
        self.main = self.current = Stream()
        self.passed = True
        self.broken = False
        self.marks = 0
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                if device.broken:
                    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
                device.marks += 1
                self.at = device.current.at

            def query(self) -> bool:
                return device.passed

            def elapsed_time(self, other: Event) -> float:
                return other.at - self.at

        self.Event, self.Stream = Event, Stream

    @contextmanager
    def stream(self, other: Stream):
        self.current = other
        yield
        self.current = self.main

    def compute(self, ms: float) -> None:
        self.main.at += ms

    def waits_for(self, at: float) -> None:
        """The current stream goes on when that operation has ended."""
        self.current.at = max(self.current.at, at)


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def clock(device):
    return DeviceTime(device)


def launch(device, clock, ends_at: float) -> float:
    clock.launching()
    clock.launched(lambda: device.waits_for(ends_at))
    return ends_at


def step_of_ddp(device, clock, own_ms: float, others_ms: float) -> None:
    """Two buckets; the gradients of the first travel while those of the second are computed."""
    start = device.main.at
    clock.begin()
    device.compute(own_ms / 2)
    launch(device, clock, start + max(own_ms, others_ms) / 2 + 1)
    device.compute(own_ms / 2)
    last = launch(device, clock, start + max(own_ms, others_ms) + 1)
    device.waits_for(last)  # in C++
    clock.surfaced()
    device.compute(2)  # the update


def test_it_is_known_a_step_later_and_without_what_ddp_waits_for(device, clock):
    step_of_ddp(device, clock, 10, 100)
    assert clock.end(0) == 0
    step_of_ddp(device, clock, 100, 10)
    assert clock.end(0) == pytest.approx(12 * MS)
    step_of_ddp(device, clock, 10, 10)
    assert clock.end(0) == pytest.approx(102 * MS)


def test_marks_are_few_whatever_the_number_of_operations(device, clock):
    for _ in range(2):
        device.marks = 0
        clock.begin()
        for _ in range(100):
            launch(device, clock, device.main.at + 1)
        clock.end(0)
    assert device.marks == 4, "at both ends, and about the last operation"


def test_a_wait_of_ours_and_what_is_computed_meanwhile(device, clock):
    clock.begin()
    device.compute(5)
    end = launch(device, clock, 50)
    device.compute(20)  # while others are waited for by nobody
    with clock.waiting():
        device.waits_for(end)
    clock.surfaced()
    device.compute(3)
    clock.end(0)
    clock.begin()
    assert clock.end(0) == pytest.approx(28 * MS)


def test_a_host_that_waits_for_other_hosts_is_not_slow_and_one_that_sleeps_is(device, clock):
    clock.begin()
    device.compute(5 + 40 + 30)  # of which it has nothing to do for 40, since the host waits, and for 30: it sleeps
    clock.end(40 * MS)
    clock.begin()
    assert clock.end(0) == pytest.approx(35 * MS)


def test_what_the_device_has_not_passed_is_not_waited_for(device, clock):
    clock.begin()
    clock.end(0)
    device.passed = False
    clock.begin()
    assert clock.end(0) == 0


def test_a_block_that_is_left_counts_for_nothing(device, clock):
    clock.begin()
    device.compute(1000)
    launch(device, clock, 5000)
    clock.begin()  # it is redone
    device.compute(5)
    clock.surfaced()
    clock.end(0)
    clock.begin()
    assert clock.end(0) == pytest.approx(5 * MS)


def test_outside_a_block_and_without_a_device_nothing_is_marked(device, clock):
    launch(device, clock, 1)
    with clock.waiting():
        pass
    clock.surfaced()
    assert device.marks == 0
    none = DeviceTime()
    none.begin()
    assert none.end(0) == 0


def test_a_device_out_of_order_is_for_the_script_to_meet(device, clock):
    clock.begin()
    device.broken = True
    launch(device, clock, 1)
    with clock.waiting():
        pass
    assert clock.end(0) == 0
    device.broken = False
    clock.begin()
    device.compute(7)
    clock.end(0)
    clock.begin()
    assert clock.end(0) == pytest.approx(7 * MS)
