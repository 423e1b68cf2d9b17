"""Who is whose child, and who dies with whom: ranks, what they start, the warm parent, the guard, the manager."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import pytest
from kernel import alive, state_of
from launched import ONWARD, Launched, Onward, children, kill, parent, stdout, title
from waiting import LIMIT_S, until

from onward.agent.processes import MARK

FAMILY = """
    import multiprocessing, subprocess, sys, threading, time

    def work(name):
        tell(name, os.getpid())
        time.sleep(1000)  # until somebody ends it

    def work_apart(name):
        os.setsid()
        work(name)

    if __name__ == "__main__":
        tell("rank%d" % RANK, os.getpid())
        for how in ("fork", "spawn"):
            multiprocessing.get_context(how).Process(target=work, args=("of%d" % RANK,)).start()
        multiprocessing.get_context("fork").Process(target=work_apart, args=("of%d" % RANK,)).start()
        code = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'a')); time.sleep(1000)"
        told = __file__.replace("job.py", "told.of%d" % RANK)
        subprocess.Popen([sys.executable, "-c", code, told], start_new_session=True)
        in_thread = lambda: subprocess.Popen(["setsid", "-f", sys.executable, "-c", code, told])
        threading.Thread(target=in_thread).start()
        wait_for("never")
"""
HELPERS = 5


def family(job: Launched, rank: int) -> tuple[int, list[int]]:
    """The latest process of a rank, and all it has started."""
    helpers = job.pids(f"of{rank}", HELPERS)
    assert all(alive(p) for p in helpers)
    return job.pids(f"rank{rank}")[-1], helpers


def test_the_death_of_a_rank_ends_its_whole_tree(onward: Onward) -> None:
    """Workers inherit sockets: while one lives, the peers of a dead rank see no end of the connection."""
    job = onward.start(onward.script(FAMILY))
    (zero, of_zero), (one, of_one) = family(job, 0), family(job, 1)
    assert parent(zero) == parent(one) == job.pid
    kill(one)
    until(lambda: not any(alive(p) for p in of_one), "everything that rank 1 had started is gone")
    until(lambda: not any(alive(p) for p in of_zero), "rank 0 was restarted too, with its tree")
    again = job.pids("of1", 2 * HELPERS)[HELPERS:]
    assert all(alive(p) for p in again), "those of the next incarnation are not swept away with the old ones"


@pytest.mark.parametrize("guard_is", ["well", "killed before", "stopped"])
def test_a_killed_launcher_leaves_no_orphans(onward: Onward, guard_is: str) -> None:
    job = onward.start(onward.script(FAMILY))
    for rank in (0, 1):
        family(job, rank)
    manager, guard = until(lambda: job.manager, "a manager"), until(lambda: job.guard, "a guard")
    if guard_is == "killed before":
        kill(guard)
        guard = until(lambda: job.guard if job.guard != guard else 0, "a new guard")
    everybody = job.gather()
    assert {manager, guard} < everybody
    assert len(everybody) >= 2 + 2 + 2 * HELPERS
    run_dir = job.run_dirs
    if guard_is == "stopped":
        kill(guard, signal.SIGSTOP)
        until(lambda: state_of(guard) != "S" and state_of(guard) != "R", "it is stopped")  # or replaced already
    kill(job.pid)
    job.nothing_left()
    until(lambda: not run_dir[0].exists(), "what it had in shared memory is given back")


def test_what_a_launcher_and_its_guard_leave_goes_with_the_next_command(onward: Onward) -> None:
    """Both killed in one instant: nobody is left who would know of what ranks had started in sessions of their own."""
    job = onward.start(onward.script(FAMILY))
    helpers = [pid for rank in (0, 1) for pid in family(job, rank)[1]]
    guard = until(lambda: job.guard, "a guard")
    job.gather()
    kill(job.pid, signal.SIGSTOP)  # or it would start another guard
    kill(guard)
    kill(job.pid)
    until(lambda: not alive(job.pid) and not alive(guard), "both are gone")
    assert any(alive(p) for p in helpers), "else there is nothing to see here"
    other = subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK: "another-run.0"})
    try:
        subprocess.run([ONWARD, "ps"], check=True, capture_output=True, timeout=LIMIT_S)
        job.nothing_left()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_stopped_guard_is_replaced_by_one_that_knows_all(onward: Onward) -> None:
    job = onward.start(onward.script(FAMILY))
    of_all = [p for rank in (0, 1) for p in family(job, rank)[1]]
    first = until(lambda: job.guard, "a guard")
    kill(first, signal.SIGSTOP)
    until(lambda: job.guard not in (0, first), "a new guard")
    assert not alive(first)
    kill(job.pid)
    until(lambda: not any(alive(p) for p in of_all), "what ranks had started is gone")


def test_a_killed_manager_is_replaced_and_later_faults_are_handled(onward: Onward) -> None:
    script = """
        tell("up", os.getpid())
        wait_for("finish")
    """
    job = onward.start("-o", "json", onward.script(script))
    first = job.pids("up", 2)
    manager = until(lambda: job.manager, "a manager")
    kill(manager)
    manager = until(lambda: job.manager if job.manager != manager else 0, "a new manager")
    assert all(alive(p) for p in first), "no rank noticed"
    kill(first[1])
    second = job.pids("up", 4)[2:]
    assert not set(second) & set(first)
    kill(manager, signal.SIGSTOP)
    until(lambda: job.manager not in (0, manager), "one that is stopped is replaced")
    assert "the manager has been stopped" in job.err, "the kernel is asked, its silence is not waited for"
    onward.go("finish")
    assert job.wait() == 0, job.err
    assert len(job.outcome["incidents"]) == 1
    assert [len(p) for p in job.outcome["pids"].values()] == [2, 2]


# ------------------------------------------------------------------------------------------------ with torch

TRAINS = """
    tell("threads", len(os.listdir("/proc/self/task")))
    import numpy, random, subprocess, time
    import onward, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    run = onward.init()
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run.protect(model=model, optimizer=optimizer)
    tell("drawn%d" % RANK, "%d %r" % (os.getpid(), (random.random(), numpy.random.rand(), float(torch.rand(1)))))
    tell("up%d" % RANK, os.getpid())
    tell("of%d" % RANK, subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)
    for step in run.steps(100000):
        with step:
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            over = torch.tensor(float(os.path.exists(__file__.replace("job.py", "finish"))))
            dist.all_reduce(over, dist.ReduceOp.MIN)
            time.sleep(0.01)  # a step takes a while
        if step.committed:
            if run.rank == 0 and step.index % 10 == 0:
                tell("step", step.index)
            if over.item():
                break
"""


def steps(job: Launched) -> int:
    return len(job._told("step"))


def goes_on(job: Launched) -> None:
    """All ranks commit steps from here on."""
    now = steps(job)
    until(lambda: steps(job) > now + 1 or job.over, "further steps")
    assert not job.over, job.err


def maps(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


def devices(pid: int) -> list[str]:
    found = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    return [path for path in found if path.startswith("/dev/nvidia")]


@pytest.mark.torch
def test_the_job_outlives_each_of_its_helpers(onward: Onward) -> None:
    job = onward.start("-o", "json", "--spares", "each", onward.script(TRAINS), warm=True)
    first = [job.pids(f"up{r}")[0] for r in (0, 1)]
    helpers = [job.pids(f"of{r}")[0] for r in (0, 1)]
    goes_on(job)

    # Forked from one thread, with torch at hand and no device touched; the launcher itself has none of it.
    assert set(job.said("threads", 2)) == {"1"}
    warm = job.warm
    assert len(os.listdir(f"/proc/{warm}/task")) == 1
    assert "libtorch" in maps(warm)
    assert "/dev/nvidia" not in maps(warm), "a CUDA context maps its device"
    assert devices(warm) == []
    assert "libtorch" not in maps(job.pid)
    assert "libtorch" not in maps(job.manager)
    assert [parent(p) for p in first] == [job.pid] * 2

    assert [title(p) for p in (job.pid, warm, job.manager, job.guard)] == [
        "onward:job",
        "warm:job",
        "manager:job",
        "guard:job",
    ]
    assert [title(p) for p in first] == ["rank0:job", "rank1:job"]
    spare = until(lambda: [p for p in job.pids("up1") if p != first[1]], "a spare for rank 1")[0]
    assert title(spare) == "spare1:job"

    # What a script draws in its set-up without a seed differs from rank to rank, and is the same in a replacement.
    lines = (line.split(" ", 1) for rank in (0, 1) for line in job.said(f"drawn{rank}"))
    drawn = {int(pid): eval(numbers) for pid, numbers in lines}
    assert drawn[first[1]] == drawn[spare]
    assert not set(drawn[first[0]]) & set(drawn[first[1]])

    # The warm parent dies: no rank does, another comes up, and a rank killed afterwards is still replaced.
    kill(warm)
    until(lambda: job.warm not in (0, warm), "a new warm parent")
    assert all(alive(p) for p in first)
    kill(first[1])
    second = until(lambda: [p for p in job.pids("up1") if p != first[1] and alive(p)], "rank 1 has a new process")
    goes_on(job)
    assert title(second[0]) == "rank1:job", "a spare that has taken over is called a rank"
    assert alive(first[0])
    assert [alive(p) for p in helpers] == [True, False], "what a rank has started goes with it, and nothing else"

    # The same with the manager.
    manager = job.manager
    kill(manager)
    until(lambda: job.manager not in (0, manager), "a new manager")
    goes_on(job)
    kill(first[0])
    until(lambda: [p for p in job.pids("up0") if p != first[0] and alive(p)], "rank 0 has a new process")
    goes_on(job)
    assert alive(second[0]), "rank 1 was none of it"

    onward.go("finish")
    assert job.wait() == 0, job.err
    assert job.outcome["outcome"] == "Succeeded"
    assert job.outcome["steps_lost"] == 0
    assert [i["policy"] for i in job.outcome["incidents"]] == ["recover-in-place"] * 2
    assert [len(p) for p in job.outcome["pids"].values()] == [2, 2]
    job.nothing_left()


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
def test_random_kills_of_ranks_spares_and_helpers_lose_no_step(onward: Onward, seed: int) -> None:
    """One rank at a time, with or without the warm parent, the manager or a spare just before it."""
    rng = random.Random(seed)
    job = onward.start("-o", "json", "--spares", "each", onward.script(TRAINS), warm=True)
    for rank in (0, 1):
        job.pids(f"up{rank}")
    goes_on(job)
    for _ in range(15):
        victims = [pid for pid in (job.warm, job.manager) if pid and rng.random() < 0.6]
        rank = rng.randrange(2)
        victims += [pid for pid in incarnations(job, rank)[1:] if rng.random() < 0.2]
        for pid in victims:
            kill(pid)
        time.sleep(rng.choice([0.0, 0.05, 0.3, 0.8]) * rng.random())  # a moment at random
        kill(incarnations(job, rank)[0])
        goes_on(job)
    onward.go("finish")
    assert job.wait() == 0, job.err
    assert job.outcome["steps_lost"] == 0
    assert {i["policy"] for i in job.outcome["incidents"]} == {"recover-in-place"}
    assert len(job.outcome["incidents"]) >= 15
    job.nothing_left()


def incarnations(job: Launched, rank: int) -> list[int]:
    """The processes of a rank, oldest first: the one that trains, then a spare."""
    found = [(stdout(p), p) for p in children(job.pid) if alive(p)]
    return [p for log, p in sorted(found) if f"/rank{rank}." in log]


@pytest.mark.torch
def test_a_killed_launcher_takes_ranks_spares_and_warm_parent_with_it(onward: Onward) -> None:
    job = onward.start("--spares", "each", onward.script(TRAINS), warm=True)
    until(lambda: all(len(job._told(f"up{r}")) >= 2 for r in (0, 1)), "two ranks and two spares")
    everybody = job.gather()
    assert {job.warm, job.manager, job.guard, *job.pids("up0", 2), *job.pids("up1", 2)} <= everybody
    kill(job.pid)
    job.nothing_left()


def test_a_warm_parent_that_does_not_stay_up_is_done_without(onward: Onward) -> None:
    """Killed again and again before it is ready: ranks start cold, and all is as it should be."""
    script = onward.script("import sys\nassert 'torch' not in sys.modules\ntell('up', os.getpid())")
    job = onward.start("-o", "json", script, warm=True)
    killed: set[int] = set()

    def another() -> bool:
        pid = job.warm
        if pid and pid not in killed:
            kill(pid)
            killed.add(pid)
        return "started cold from now on" in job.err or job.over

    until(another, "the launcher gave up on a warm parent")
    assert job.wait() == 0, job.err
    assert len(job.pids("up", 2)) == 2
    assert len(killed) >= 2
    assert [len(p) for p in job.outcome["pids"].values()] == [1, 1]


def test_why_a_replacement_takes_long_is_said(onward: Onward) -> None:
    """The warm parent was killed with the rank, and the next one has to import torch first."""
    env = onward.stub_torch()
    slow, enough = onward.tmp / "slow", onward.tmp / "enough"
    waits = f"while os.path.exists({str(slow)!r}) and not os.path.exists({str(enough)!r}): time.sleep(0.01)"
    (onward.tmp / "stub/torch/__init__.py").write_text(f"import os, time\n{waits}\n")
    script = """
        tell("up%d" % COUNT, os.getpid())
        wait_for("finish")
    """
    job = onward.start(onward.script(script), warm=True, env=env)
    first = job.pids("up0", 2)
    slow.touch()
    kill(job.warm)
    kill(first[1])
    until(lambda: "has still to import torch, so its process starts cold" in job.err, "it is said")
    enough.touch()
    job.pids("up1", 2)
    onward.go("finish")
    assert job.wait() == 0, job.err
    assert job.err.count("starts cold") == 1, "once, not for each rank"


def test_a_warm_parent_that_hangs_is_not_waited_for_and_forks_nobody_later(onward: Onward) -> None:
    """Stopped when a fork is asked of it: the rank starts cold; were it continued, there would be two of that rank."""
    script = """
        tell("up%d" % COUNT, os.getpid())
        wait_for("finish")
    """
    job = onward.start("-o", "json", onward.script(script), warm=True, env=onward.stub_torch())
    first = job.pids("up0", 2)
    warm = job.warm
    kill(warm, signal.SIGSTOP)
    kill(first[1])
    second = job.pids("up1", 2)
    kill(warm, signal.SIGCONT)
    until(lambda: not alive(warm), "it was ended")
    onward.go("finish")
    assert job.wait() == 0, job.err
    assert len(job.pids("up1", 2)) == 2, "one process for each rank"
    assert sorted(second) == sorted(p[-1] for p in job.outcome["pids"].values())


LINGERS = """
    import os, time
    warm, ask = os.getpid(), os.{call}
    def linger(*args):
        if (os.getpid() == warm) == {in_parent}:
            while not os.path.exists({tmp!r} + "/linger"):
                time.sleep(0.02)
        return ask(*args)
    os.{call} = linger
"""


def test_a_warm_parent_that_is_stopped_while_it_imports_holds_nobody_up(onward: Onward) -> None:
    stub = onward.stub_torch()
    code = f"""
        import os, time
        open({str(onward.tmp)!r} + "/told.importing", "a").write(f"{{os.getpid()}}\\n")
        while not os.path.exists({str(onward.tmp)!r} + "/import"):
            time.sleep(0.02)
    """
    (onward.tmp / "stub/torch/__init__.py").write_text(textwrap.dedent(code))
    job = onward.start(onward.script("tell('up', RANK)"), warm=True, env=stub)
    warm = job.pids("importing")[0]
    kill(warm, signal.SIGSTOP)
    until(lambda: not alive(warm), "it was ended")
    onward.go("import")
    assert job.wait() == 0, job.err
    assert "the warm parent ended (SIGKILL); starting a new one, no rank is hurt" in job.err


@pytest.mark.parametrize("forked", ["in full", "by half"])
def test_a_warm_parent_that_dies_as_it_forks_leaves_one_process_of_that_rank(onward: Onward, forked: str) -> None:
    """In full: the rank runs, nobody was told of it. By half: it comes to life when another is started in its place."""
    stub, whole = onward.stub_torch(), forked == "in full"
    call = "waitpid" if whole else "write"  # by the warm parent after the fork; by the process between it and the rank
    code = LINGERS.format(call=call, in_parent=whole, tmp=str(onward.tmp))
    (onward.tmp / "stub/torch/__init__.py").write_text(textwrap.dedent(code))
    script = "tell('up', os.getpid())\nwait_for('finish')"
    job = onward.start("-o", "json", onward.script(script), nproc=1, warm=True, env=stub)
    if whole:
        fork = job.pids("up")[0]
    else:
        middle = until(lambda: next(iter(children(job.warm)), 0), "the process between")
        fork = until(lambda: next(iter(children(middle)), 0), "the fork")
    kill(job.warm)
    (rank,) = job.pids("up")
    onward.go("linger")
    if not whole:
        until(lambda: not alive(fork) or len(job.pids("up")) > 1, "the late fork gives way")
    until(lambda: job.warm, "a new warm parent")
    assert (rank == fork) is whole
    onward.go("finish")
    assert job.wait() == 0, job.err
    assert job.pids("up") == [rank]
    assert job.outcome["pids"] == {"0": [rank]}
    job.nothing_left()


def test_a_preloaded_module_with_threads_of_its_own_is_not_forked(onward: Onward) -> None:
    stub = onward.stub_torch()
    (onward.tmp / "stub/threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
    )
    script = onward.script("tell('threads', len(os.listdir('/proc/self/task')))")
    job = onward.run("--preload", "threaded", script, warm=True, env=stub)
    assert job.process.returncode == 0, job.err
    assert job.said("threads", 2) == ["1", "1"]
    assert "2 threads" in job.err
    assert children(job.pid) == []
