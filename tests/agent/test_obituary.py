"""Of many deaths the first that was not the echo of another is named."""

from __future__ import annotations

from pathlib import Path

from onward.agent.facts import Process
from onward.agent.obituary import Obituaries
from onward.core.facts import FaultReport

TRACE = "Traceback (most recent call last):\n  File \"x.py\", line 1\n"
ECHO = TRACE + "RuntimeError: Connection closed by peer [127.0.0.1]:1\n"
OWN = TRACE + "ValueError: mine\n"


def die(o: Obituaries, tmp: Path, rank: int, text: str, code: int = 1, attempt: int = 0, killed: bool = False) -> None:
    p = Process(rank + 1, rank, attempt + 1, False, False, attempt, pid=100 + rank, killed=killed)
    err = tmp / f"{rank}.{attempt}"
    err.write_text(text)
    o.dead(p, rank, code, (tmp / "out", err), tmp / "none")


def exited(rank: int, incarnation: int = 1) -> FaultReport:
    return FaultReport("exit", rank, incarnation, text="exit code 1")


def test_one_that_lost_its_peer_is_not_the_cause_though_it_was_gone_first(tmp_path: Path) -> None:
    o = Obituaries()
    die(o, tmp_path, 0, ECHO)
    die(o, tmp_path, 1, OWN, code=-15, killed=True)  # by us, while it was on its way out
    cause = o.cause(exited(0))
    assert cause is not None
    assert (cause.rank, cause.incarnation) == (1, 1)
    ended = o.of(cause)
    assert ended is not None
    assert [e.rank for e in o.others(ended)] == [0]


def test_an_error_of_its_own_is_the_cause(tmp_path: Path) -> None:
    o = Obituaries()
    die(o, tmp_path, 0, OWN)
    die(o, tmp_path, 1, OWN)
    assert o.cause(exited(0)) == exited(0)


def test_an_echo_of_something_elsewhere_stays_what_it_is(tmp_path: Path) -> None:
    o = Obituaries()
    die(o, tmp_path, 0, ECHO)
    die(o, tmp_path, 1, "", code=-15, killed=True)
    die(o, tmp_path, 2, OWN, attempt=1)
    assert o.cause(exited(0)) == exited(0)
    assert o.cause(None) is None


def test_whether_only_another_script_would_help(tmp_path: Path) -> None:
    o = Obituaries()
    die(o, tmp_path, 0, "  File \"x.py\", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax\n")
    die(o, tmp_path, 0, ECHO, attempt=1)
    die(o, tmp_path, 0, TRACE + "OSError: disk\n", attempt=2)
    die(o, tmp_path, 0, ECHO, attempt=3)
    die(o, tmp_path, 1, OWN, attempt=3)
    assert [o.blame_the_script(n) for n in range(5)] == [True, False, False, True, False]


def test_others_are_those_of_the_same_attempt(tmp_path: Path) -> None:
    o = Obituaries()
    die(o, tmp_path, 0, OWN)
    die(o, tmp_path, 1, ECHO)
    die(o, tmp_path, 2, OWN, attempt=1)
    assert [e.rank for e in o.others(o.of(exited(0)))] == [1]
