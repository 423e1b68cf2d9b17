"""Proofs of injected faults: the injector's own word is never enough."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from waiting import until

from onward.agent.witness import HANG_LOOK_S, Witness
from onward.core.facts import FaultReport
from onward.wire.messages import Injection


def watching(kind: str, rank: int = 2) -> Witness:
    w = Witness()
    w.expect(Injection(id=1, kind=kind, rank=rank))
    return w


def proof(w: Witness) -> str:
    return w.fired[0].proof if w.fired else "not fired"


def test_an_announcement_is_not_a_proof() -> None:
    w = watching("kill")
    assert proof(w) == "not fired"
    w.announced(1, 77)
    assert proof(w) == ""


def test_the_exit_status_proves_a_kill() -> None:
    w = watching("kill")
    w.announced(1, 77)
    w.exited(77, -9)
    assert proof(w) == "the kernel: pid 77 was killed by SIGKILL"


def test_the_news_of_a_death_may_overtake_the_announcement() -> None:
    w = watching("segv")
    w.exited(77, -11)
    w.announced(1, 77)
    assert "SIGSEGV" in proof(w)


@pytest.mark.parametrize(("kind", "code"), [("kill", 0), ("kill", -15), ("segv", -9), ("exit-code", 0), ("stop", -9)])
def test_another_death_proves_nothing(kind: str, code: int) -> None:
    w = watching(kind)
    w.announced(1, 77)
    w.exited(77, code)
    w.exited(78, -9)
    assert proof(w) == ""


def test_an_exception_is_proved_by_the_fault_that_the_job_handles() -> None:
    w = watching("exception")
    w.announced(1, 77)
    w.faulted((FaultReport(kind="exception", rank=0, incarnation=1, text="an echo"),))
    assert proof(w) == ""
    w.faulted((FaultReport(kind="exception", rank=2, incarnation=1, text="InjectedError: x"),))
    assert proof(w) == "the job: rank 2 reported InjectedError: x"


def test_what_was_ordered_and_never_seen_is_told() -> None:
    w = watching("kill")
    assert w.unseen() == ["kill of rank 2 did not happen"]
    w.announced(1, 77)
    assert w.unseen() == ["kill of rank 2 was announced, but nothing shows that it happened"]
    w.exited(77, -9)
    assert w.unseen() == []


def looked_at(kind: str, code: str, number: int = 0) -> str:
    """What a witness says about a real process that does what `kind` should."""
    p = subprocess.Popen([sys.executable, "-c", f"print('up', flush=True); {code}"], stdout=subprocess.PIPE)
    try:
        assert p.stdout is not None
        assert p.stdout.readline() == b"up\n"
        if number:
            os.kill(p.pid, number)
        w = watching(kind)
        w.announced(1, p.pid)
        return until(lambda: w.look() or proof(w), f"{kind} is proved")
    finally:
        p.kill()
        p.wait()
        if p.stdout is not None:
            p.stdout.close()


def test_proc_proves_a_stopped_process() -> None:
    assert "is stopped (state T)" in looked_at("stop", "import time; time.sleep(60)", signal.SIGSTOP)


def test_proc_proves_a_sleeping_one() -> None:
    assert "sleeps" in looked_at("sleep-hang", "import time; time.sleep(60)")


def test_proc_proves_an_endless_loop() -> None:
    assert "computes" in looked_at("endless-loop", "exec('while True: pass')")


def test_a_process_that_works_on_is_no_proof_of_a_hang() -> None:
    w = watching("sleep-hang")
    w.announced(1, os.getpid())
    over = time.monotonic() + 2.5 * HANG_LOOK_S  # we compute for as long as two verdicts take
    while time.monotonic() < over:
        w.look()
    assert proof(w) == ""


def test_proc_proves_that_a_process_of_ours_is_gone() -> None:
    p = subprocess.Popen([sys.executable, "-c", "pass"])
    p.wait()
    w = watching("kill-manager", rank=-1)
    w.announced(1, p.pid)
    w.look()
    assert "is gone" in proof(w)
