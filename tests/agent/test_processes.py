"""Child processes: each exit status is seen once, by the one who waits for it, and a sweep hits only what it should."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from kernel import alive, state_of
from waiting import until

from onward.agent.processes import MARK, Child, children, disown, kill_tree, reap_orphans

LIMIT_S = 60.0


def exit_code(start: Callable[[], int], act: Callable[[Child], None] = lambda child: None) -> int:
    """How the kernel says that it ended."""

    async def go() -> int:
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        act(Child(start(), ended.set_result))
        return await asyncio.wait_for(ended, LIMIT_S)

    return asyncio.run(go())


def shell(line: str, **options: object) -> int:
    return disown(subprocess.Popen(["sh", "-c", line], **options))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("line", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9), ("ulimit -c 0; kill -SEGV $$", -11)]
)
def test_the_kernels_word_for_how_it_ended(line: str, code: int) -> None:
    assert exit_code(lambda: shell(line)) == code


def test_a_signal_reaches_it_and_only_while_it_is_there() -> None:
    seen: list[Child] = []

    def act(child: Child) -> None:
        seen.append(child)
        child.signal(signal.SIGTERM)

    assert exit_code(lambda: shell("exec sleep 1000"), act) == -signal.SIGTERM
    seen[0].signal(signal.SIGKILL)  # gone: says nothing, hits nobody


def test_an_exit_status_is_not_lost_to_whoever_else_reaps() -> None:
    """subprocess waits for forgotten children whenever it starts another one."""
    pid = shell("exit 7")
    until(lambda: state_of(pid) == "Z", "it has ended")
    gc.collect()
    subprocess.run(["true"], check=True)
    assert exit_code(lambda: pid) == 7


def test_a_newly_adopted_child_is_not_reaped_before_it_is_introduced() -> None:
    pid = shell("exit 7")
    until(lambda: state_of(pid) == "Z", "it has ended")
    before = children() - {pid}
    strangers = reap_orphans(known=before, strangers=set())
    assert strangers == {pid}
    assert exit_code(lambda: pid) == 7, "its status was still there"


def test_an_orphan_that_nobody_knows_is_reaped() -> None:
    pid = shell("exit 7")
    until(lambda: state_of(pid) == "Z", "it has ended")
    before = children() - {pid}
    reap_orphans(before, reap_orphans(before, set()))
    assert pid not in children()


def test_a_sweep_takes_the_session_and_the_marked_and_nobody_else() -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(1000)"]
    line = ["sh", "-c", "sleep 1000 & echo $!; exec sleep 1000"]
    leader = subprocess.Popen(line, stdout=subprocess.PIPE, start_new_session=True)
    started = [leader]
    try:
        assert leader.stdout is not None
        member = int(leader.stdout.readline())
        marked = subprocess.Popen(sleeper, env={**os.environ, MARK: "run.1"}, start_new_session=True)
        other = subprocess.Popen(sleeper, env={**os.environ, MARK: "run.12"}, start_new_session=True)
        neither = subprocess.Popen(sleeper, start_new_session=True)
        started += [marked, other, neither]
        until(lambda: "time.sleep" in _command(marked.pid) and "time.sleep" in _command(other.pid), "they run")
        assert sorted(kill_tree(leader.pid, "run.1")) == sorted([member, marked.pid])
        marked.wait(LIMIT_S)
        until(lambda: not alive(member), "the member is gone")
        assert all(p.poll() is None for p in (leader, other, neither)), "the leader is dead when this is asked"
    finally:
        for p in started:
            p.kill()
            p.wait()


def _command(pid: int) -> str:
    with open(f"/proc/{pid}/cmdline", "rb") as f:
        return f.read().decode()
