"""One operator on one machine: the next one knows that the one before it is gone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from onward.operator.process import is_dead


def test_whose_process_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = f"{socket.gethostname()}-{child.pid}"
    try:
        assert not is_dead(holder)
        assert not is_dead(f"{socket.gethostname()}-{os.getpid()}")
    finally:
        child.kill()
        child.wait(10)
        assert child.stdin is not None
        child.stdin.close()
    assert is_dead(holder)
    assert not is_dead(f"elsewhere-{child.pid}"), "of other machines nothing is known"
    assert not is_dead("somebody else")
