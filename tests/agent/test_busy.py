"""A machine without a free core: how the agent sees it, so that nobody is blamed for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from waiting import until

from onward.agent.busy import WINDOW_S, Lateness, RunQueue, Standstill
from onward.wire.kernel import is_dying, is_stopped


def test_the_worst_tick_of_the_last_seconds_counts() -> None:
    late = Lateness()
    assert late.see(0.01, 0.0) == 0.01
    assert late.see(0.8, 1.0) == 0.8
    assert late.see(0.02, 2.0) == 0.8
    assert late.see(0.05, 1.0 + WINDOW_S) == 0.8
    assert late.see(0.01, 1.1 + WINDOW_S) == 0.05


def test_the_queue_is_counted_from_the_last_progress(tmp_path) -> None:
    queue = RunQueue(os.getpid())
    queue._path = str(tmp_path / "schedstat")

    def waited(s: float) -> None:
        (tmp_path / "schedstat").write_text(f"123456789 {int(s * 1e9)} 42\n")

    waited(7.0)
    assert queue.since(progress=1) == 0.0
    waited(7.5)
    assert queue.since(progress=1) == 0.5
    assert queue.since(progress=2) == 0.0
    waited(7.75)
    assert queue.since(progress=2) == 0.25


def test_a_process_that_is_gone_has_waited_for_nothing() -> None:
    assert RunQueue(2**22 + 1).since(progress=1) == 0.0


def test_one_that_was_killed_is_known_at_once() -> None:
    """While the kernel takes back its memory it is still there."""
    code = "import time; held = bytearray(b'1') * (64 << 20); print('here', flush=True); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert not is_dying(process.pid)
        process.kill()
        assert is_dying(process.pid)
    assert is_dying(process.pid), "it is no more"


def test_one_that_is_stopped_is_known_by_the_kernels_word() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            standstill = Standstill(process.pid)
            assert standstill.lasts(now=5.0) == 0.0
            process.send_signal(signal.SIGSTOP)
            until(lambda: is_stopped(process.pid), "it is stopped")
            assert [standstill.lasts(now) for now in (6.0, 7.5)] == [0.0, 1.5]
            process.send_signal(signal.SIGCONT)
            until(lambda: not is_stopped(process.pid), "it goes on")
            assert [standstill.lasts(now) for now in (8.0, 9.5)] == [0.0, 0.0]
        finally:
            process.kill()
    assert standstill.lasts(now=10.0) == 0.0
