"""Faults on purpose, carried out inside the rank that they are for, at the moment that was asked for.

The agent is told first, so that the replacement does not fall into the same one again; the proof that a fault
happened is left to the kernel.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time

import msgspec
from torch.nn.modules.module import register_module_forward_pre_hook

from onward.train.groups import Groups
from onward.train.link import Link
from onward.wire.messages import Injected, Injection

RAISED = ("exception", "bug", "oom")  # kinds that must surface inside the block, as a user's error would


class InjectedError(RuntimeError):
    """What an injected exception raises; its text decides whether it is retryable."""


class Injector:
    """Holds what is to happen in this rank."""

    def __init__(self, link: Link, injections: list[Injection], groups: Groups) -> None:
        self._link = link
        self._groups = groups
        self._waiting = list(injections)
        self._slow = _Slowness()

    def at(self, moment: str, step: int) -> None:
        """Called at `moment` of `step`: carry out what is due."""
        if self._link.injections:
            fresh, self._link.injections = self._link.injections, []
            self._waiting.extend(fresh)
        if moment == "begin":
            self._slow.drag()
        if not self._waiting:
            return
        if moment == "begin":
            self._arm(step)
        due = [i for i in self._waiting if i.at == moment and (i.step < 0 or i.step <= step)]
        for injection in due:
            self._waiting.remove(injection)
            self._link.send(Injected(id=injection.id))
            self._do(injection)

    def _arm(self, step: int) -> None:
        """What is to happen in the forward pass, or be raised inside the block, waits for the first module called."""
        now = [i for i in self._waiting if i.step < 0 or i.step <= step]
        if not any(i.at == "forward" or i.kind in RAISED for i in now):
            return
        for i in now:
            if i.at == "begin" and i.kind in RAISED:
                self._waiting[self._waiting.index(i)] = msgspec.structs.replace(i, at="forward")

        def fire(module: object, args: object) -> None:
            handle.remove()
            self.at("forward", step)

        handle = register_module_forward_pre_hook(fire)

    def _do(self, i: Injection) -> None:
        match i.kind:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segv":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "abort":
                os.abort()
            case "exit-code":
                os._exit(i.code or 1)
            case "exception":
                raise InjectedError(i.text or "injected: Connection reset by peer")
            case "bug":
                raise ValueError(i.text or "injected: an error that no retry cures")
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "sleep-hang":
                time.sleep(i.seconds or 1e6)
            case "gil-hang":
                # usleep through PyDLL keeps the interpreter lock: no thread of this process runs meanwhile.
                until = time.monotonic() + (i.seconds or 1e6)
                libc = ctypes.PyDLL(None)
                while time.monotonic() < until:
                    libc.usleep(ctypes.c_uint(999_999))
            case "endless-loop":
                until = time.monotonic() + (i.seconds or 1e6)
                while time.monotonic() < until:
                    pass
            case "drop-connections":
                self._groups.generation.drop_connections()
            case "skip-collective":
                self._groups.skip_next = True
            case "slow":
                self._slow = _Slowness(i.delay or 0.2, i.seconds, i.steps)
                self._slow.drag()
            case "oom":
                _exhaust_memory()
            case _:
                raise ValueError(f"unknown injection {i.kind!r}")


class _Slowness:
    """So much longer for each step, for some time, for some steps, or for good."""

    def __init__(self, delay_s: float = 0.0, seconds: float = 0.0, steps: int = 0) -> None:
        self._delay_s = delay_s
        self._until = time.monotonic() + seconds if seconds else 0.0
        self._left = steps

    def drag(self) -> None:
        if not self._delay_s:
            return
        if self._until and time.monotonic() >= self._until:
            self._delay_s = 0.0
            return
        time.sleep(self._delay_s)
        self._left -= 1
        if self._left == 0:
            self._delay_s = 0.0


def _exhaust_memory() -> None:
    """Allocate for real until the kernel says no, under a limit that spares the rest of the machine."""
    import resource

    with open("/proc/self/statm") as f:
        now = int(f.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20), now + (256 << 20)))
    held = []
    while True:
        held.append(bytearray(16 << 20))
