"""Did an injected fault really happen? Only somebody else's word counts: the kernel's where it can be had.

The rank that carries out an injection announces it; that is not believed. A death is proved by the exit status that the
kernel hands to the reaper, a stopped or hanging process by /proc, an exception by the fault that the job then handles.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from onward.core.facts import FaultReport
from onward.core.faults import signal_name
from onward.wire.messages import Injection
from onward.wire.view import Fired

DEADLY = {"kill": -9, "segv": -11, "abort": -6}
HANGING = ("stop", "sleep-hang", "gil-hang", "endless-loop")
UNPROVABLE = ("slow",)  # the rank's own word is all there is
HANG_LOOK_S = 0.3  # between two looks at a process that should do nothing, or nothing but compute
KEPT_EXITS = 256
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class _Watch:
    injection: Injection
    fired: Fired | None = None
    first_look: tuple[float, int] | None = None  # when, and how much CPU time the main thread had used


class Witness:
    """Watches every injection of the job, from the order to the proof."""

    def __init__(self) -> None:
        self._watched: dict[int, _Watch] = {}
        self._exits: dict[int, int] = {}  # pid -> exit code, of the latest

    @property
    def fired(self) -> list[Fired]:
        return [w.fired for w in self._watched.values() if w.fired is not None]

    def unseen(self, ours: Callable[[Injection], bool] = lambda i: True) -> list[str]:
        """What was ordered and has not happened, or was announced and never proved, in words."""
        missing = []
        for watch in self._watched.values():
            i = watch.injection
            if not ours(i):
                continue
            what = f"{i.kind}{f' of rank {i.rank}' if i.rank >= 0 else ''}{f' at step {i.step}' if i.step >= 0 else ''}"
            if watch.fired is None:
                missing.append(f"{what} did not happen")
            elif not watch.fired.proof and i.kind not in UNPROVABLE:
                missing.append(f"{what} was announced, but nothing shows that it happened")
        return missing

    def next_id(self) -> int:
        return max(self._watched, default=0) + 1

    def expect(self, injection: Injection) -> None:
        self._watched[injection.id] = _Watch(injection)

    def announced(self, number: int, pid: int) -> None:
        """Whoever carries it out says that it is about to."""
        watch = self._watched.get(number)
        if watch is not None and watch.fired is None:
            i = watch.injection
            watch.fired = Fired(id=i.id, kind=i.kind, rank=i.rank, step=i.step, pid=pid, at=time.monotonic())
            if pid in self._exits:  # the kernel was quicker
                self.exited(pid, self._exits[pid])

    def exited(self, pid: int, code: int) -> None:
        """The kernel says that `pid` is gone."""
        self._exits[pid] = code
        if len(self._exits) > KEPT_EXITS:
            del self._exits[next(iter(self._exits))]
        for watch in self._open(pid):
            kind = watch.injection.kind
            wanted = DEADLY.get(kind, -9 if kind.startswith("kill") else None)
            how = f"killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
            if code == wanted or (kind in ("exit-code", "oom") and code != 0):
                self._prove(watch, f"the kernel: pid {pid} was {how}" if code < 0 else f"the kernel: pid {pid} {how}")

    def faulted(self, faults: tuple[FaultReport, ...]) -> None:
        """The job handles these faults."""
        for watch in self._open():
            i, kind = watch.injection, watch.injection.kind
            if kind == "drop-connections":
                match = next((f for f in faults if f.retryable == "communication"), None)
            elif kind in ("exception", "bug", "oom"):
                match = next((f for f in faults if f.rank == i.rank and f.kind == "exception"), None)
            elif kind == "skip-collective":
                match = next((f for f in faults if f.kind in ("hang", "stall", "exception")), None)
            else:
                match = None
            if match is not None:
                text = match.text.splitlines()[0][:100] if match.text else match.kind
                self._prove(watch, f"the job: rank {match.rank} reported {text}")

    def look(self) -> None:
        """Ask /proc about processes that should be stopped, hanging or gone."""
        for watch in self._open():
            assert watch.fired is not None
            pid = watch.fired.pid
            if watch.injection.kind in HANGING:
                self._look_at(watch, pid)
            elif watch.injection.kind.startswith("kill-") and _main_thread(pid) is None:
                self._prove(watch, f"/proc: pid {pid} is gone")

    def _look_at(self, watch: _Watch, pid: int) -> None:
        found = _main_thread(pid)
        if found is None:
            return
        state, cpu = found
        if watch.injection.kind == "stop":
            if state in ("T", "t"):
                self._prove(watch, f"/proc: pid {pid} is stopped (state {state})")
            return
        now = time.monotonic()
        if watch.first_look is None:
            watch.first_look = (now, cpu)
            return
        since, used = now - watch.first_look[0], cpu - watch.first_look[1]
        if since < HANG_LOOK_S:
            return
        if watch.injection.kind == "endless-loop" and used > 0:
            self._prove(watch, f"/proc: pid {pid} computes ({used * 1000 // _TICKS_PER_S} ms in {since * 1000:.0f} ms)")
        elif watch.injection.kind != "endless-loop" and state == "S" and used <= 1:
            self._prove(watch, f"/proc: pid {pid} sleeps (state S, no CPU time in {since * 1000:.0f} ms)")
        else:
            watch.first_look = (now, cpu)

    def _open(self, pid: int = 0) -> list[_Watch]:
        fired = [w for w in self._watched.values() if w.fired is not None and not w.fired.proof]
        return [w for w in fired if w.fired is not None and (not pid or w.fired.pid == pid)]

    def _prove(self, watch: _Watch, proof: str) -> None:
        assert watch.fired is not None
        watch.fired = replace(watch.fired, proof=proof)


def _main_thread(pid: int) -> tuple[str, int] | None:
    """State and used CPU ticks of a process's main thread; None when it is gone."""
    try:
        with open(f"/proc/{pid}/task/{pid}/stat", "rb") as f:
            stat = f.read()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return fields[0].decode(), int(fields[11]) + int(fields[12])
