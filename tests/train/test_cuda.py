"""The same on a CUDA device: over gloo with several ranks on one GPU, and over NCCL.

NCCL does not let two ranks of one host share a GPU. The script gives each rank a host name of its own, so that they
talk over sockets: slow, but with real kernels that really wait for a peer that is gone.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time

import pytest


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    probe = [sys.executable, "-c", "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 1)"]
    return os.path.exists("/dev/nvidiactl") and subprocess.run(probe, check=False).returncode == 0


pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not _has_cuda(), reason="needs a CUDA device")]
SCRIPT, ARGS = "tests/scripts/cuda/mlp.py", ("--steps", "40")
ECC = "text=CUDA error: uncorrectable ECC error encountered"


def check(jobs, nproc, args, fault):
    result = jobs.run(SCRIPT, *args, nproc=nproc, chaos=[fault])
    assert result.code == 0, result.err[-4000:]
    assert len(result.incidents) == 1, result.incidents
    jobs.same_state(jobs.reference(SCRIPT, *args, nproc=nproc), result)
    print(f"{' '.join(args)} {fault}:", {k: v for k, v in result.incidents[0].items() if k.endswith("_ms")})
    return result


@pytest.mark.parametrize(
    "fault",
    [
        "kind=kill,rank=1,step=20,at=forward",
        "kind=kill,rank=0,step=20,at=optimizer",
        "kind=stop,rank=1,step=20",
        "kind=exception,rank=1,step=20",
        f"kind=exception,rank=1,step=20,{ECC}",
        "kind=drop-connections,rank=0,step=20,at=collective",
    ],
)
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_fault_with_two_ranks_on_one_gpu(jobs, backend, fault):
    if backend == "nccl" and "drop-connections" in fault:
        pytest.skip("only gloo's connections can be dropped, and a step has no collective there")
    result = check(jobs, 2, (*ARGS, "--backend", backend), fault)
    assert result.outcome["steps_lost"] == 0


@pytest.mark.parametrize("look", [(), ("--look",)], ids=["at-the-gate", "in-a-blocking-call"])
def test_a_kernel_that_waits_for_ever_is_ended(jobs, look):
    """Rank 1 never enters an all-reduce; rank 0's kernel spins, with the main thread at the gate or inside CUDA."""
    args = (*ARGS, "--backend", "nccl", *look)
    result = check(jobs, 2, args, "kind=sleep-hang,rank=1,step=20,at=collective")
    assert result.outcome["steps_lost"] == 0
    assert [f["rank"] for f in result.incidents[0]["faults"] if f["kind"] == "hang"] == [1]
    assert len(result.pids(0)) == 1, "the process with the stuck kernel lives on"


def test_many_faults_in_one_run_on_nccl(jobs):
    args = ("--steps", "200", "--backend", "nccl")
    faults = [f"kind=exception,rank={n % 2},step={10 + 10 * n}" for n in range(14)]
    kills = ((155, "forward"), (175, "optimizer"), (190, "forward"))
    faults += [f"kind=kill,rank=0,step={step},at={at}" for step, at in kills]
    result = jobs.run(SCRIPT, *args, nproc=2, chaos=faults)
    assert result.code == 0, result.err[-4000:]
    assert result.outcome["steps_lost"] == 0
    assert len(result.outcome["chaos"]) == len(faults)
    print("total_ms", [i["total_ms"] for i in result.incidents])
    jobs.same_state(jobs.reference(SCRIPT, *args, nproc=2), result)


def test_a_retry_with_one_rank_on_nccl(jobs):
    result = check(jobs, 1, ARGS, "kind=exception,rank=0,step=20")
    assert result.policies() == ["retry"]
    assert result.outcome["steps_lost"] == 0
    assert len(result.pids(0)) == 1


def test_a_kill_of_the_only_rank_on_nccl(jobs):
    """No replica is left: the script runs again from its start, and arrives at the same numbers."""
    check(jobs, 1, ARGS, "kind=kill,rank=0,step=20")


@pytest.mark.parametrize("host", [False, True], ids=["slow-kernels", "slow-host"])
def test_a_slow_rank_is_named_and_cleared_on_nccl(jobs, host):
    """By the device's clock: the host of either rank does nothing but launch and wait."""
    args, slow = ["--steps", "220", "--backend", "nccl"], "kind=slow,rank=1,step=40,delay=0.2,steps=60"
    result = jobs.run("tests/scripts/cuda/paced.py", *args, *([] if host else ["--slow", "40:100:0.2"]), nproc=2,
                      chaos=[slow] if host else [], flags=["--spares", "none"])  # fmt: skip
    assert result.code == 0, result.err[-4000:]
    print(result.outcome["conditions"])
    (found,) = result.outcome["conditions"]
    assert (found["kind"], found["rank"]) == ("slow", 1)
    assert found["since"] < found["until"], "it was over before the job was"
    assert "rank 1 is slow: it computes" in result.err
    assert not result.incidents


# ---------------------------------------------------------------------------------- the backend by itself


def test_what_a_device_computes_is_told_from_what_it_waits_for(desk):
    """The all-reduce takes its time behind a kernel in a stream of its own, as if another rank came late."""
    import torch
    from torch.distributed import AllreduceOptions

    from onward.train.devicetime import DeviceTime

    groups, group, device = desk
    groups.device_time = clock = DeviceTime(torch.cuda)
    late, found = torch.cuda.Stream(), []
    options = AllreduceOptions()
    options.asyncOp = True
    tensor = torch.ones(4, device=device)
    for explicit in (True, False, True):
        clock.begin()
        torch.cuda._sleep(int(1e8))  # our own part: about 50 ms
        clock.launching()
        with torch.cuda.stream(late):
            late.wait_stream(torch.cuda.default_stream())
            torch.cuda._sleep(int(4e8))
            work = group._inner["cuda"][1].allreduce([tensor], options)
        clock.launched(lambda work=work: work.get_future().wait())
        if explicit:
            with clock.waiting():
                work.get_future().wait()
        else:
            work.get_future().wait()  # as DDP does, inside C++
        assert groups.drain(groups.generation, everything=True)
        torch.cuda.synchronize()
        found.append(clock.end(0) / 1e6)
    torch.cuda.synchronize()
    clock.begin()
    found.append(clock.end(0) / 1e6)
    print("own part of a step in which the device stands still for about four times as long, ms:", found)
    assert found[0] == 0
    assert all(20 < ms < 120 for ms in found[1:]), found


@pytest.fixture
def desk():
    import torch
    import torch.distributed as dist

    from onward.train.backends import choose
    from onward.train.generation import Generation
    from onward.train.group import Group
    from onward.train.groups import Groups

    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    groups = Groups(dist.HashStore(), "127.0.0.1", 60.0)
    groups.accelerated, groups.devices = True, [device]
    groups.backends = choose("nccl", device, 0, 1)
    groups.generation = Generation(1)
    groups.gated = True
    group = Group(groups, "world", 0, 1, (0,), 1)
    group.allreduce([torch.ones(4, device=device)]).wait()
    assert groups.drain(groups.generation)
    yield groups, group, device
    groups.generation.abort("the test is over")


def test_the_gate_is_left_at_once_while_a_kernel_runs(desk):
    import torch

    groups, group, device = desk
    tensor = torch.ones(1 << 20, device=device)
    torch.cuda._sleep(int(4e9))  # about two seconds
    group.allreduce([tensor]).wait()
    threading.Timer(0.2, groups.generation.abort, ["rank 1 died"]).start()
    start = time.monotonic()
    assert not groups.drain(groups.generation)
    assert 0.1 < time.monotonic() - start < 0.6
    groups.settle()
    quiet = time.monotonic() - start
    assert quiet > 1.0, "the fence waits for a kernel that no abort ends"
    groups.open(2)
    group.allreduce([tensor]).wait()
    assert groups.drain(groups.generation)
    assert tensor.sum().item() == 1 << 20, "the context is as good as before"


def test_generations_follow_each_other_quickly(desk):
    import torch

    groups, group, device = desk
    tensor = torch.ones(8, device=device)
    times = []
    for number in range(2, 12):
        start = time.monotonic()
        groups.generation.abort("again")
        groups.settle()
        groups.open(number)
        group.allreduce([tensor]).wait()
        assert groups.drain(groups.generation)
        times.append(time.monotonic() - start)
    print("abort to next all-reduce, ms:", [round(t * 1000) for t in times])
    assert sorted(times)[len(times) // 2] < 0.6, times


def test_the_gate_costs_little(desk):
    import torch

    groups, group, device = desk
    tensor = torch.ones(1024, device=device)
    spent = []
    for _ in range(200):
        for _ in range(4):
            group.allreduce([tensor]).wait()
        torch.cuda.synchronize()
        start = time.perf_counter()
        assert groups.drain(groups.generation)
        spent.append(time.perf_counter() - start)
    print("gate with four ended all-reduces, microseconds:", round(sorted(spent)[100] * 1e6))
    assert sorted(spent)[100] < 0.001
