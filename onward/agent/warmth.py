"""The agent's side of the warm parent: start it, ask it for forks, do without it when it is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable

import msgspec

from onward.agent.busy import STOPPED_S, Standstill
from onward.agent.processes import Child, disown, run_module
from onward.agent.rank import RankSpec, claimed
from onward.agent.settings import RunSettings
from onward.agent.warm import Forked, Ready
from onward.errors import WireError
from onward.wire.frames import read_frame

READY_S = 120.0  # importing torch from a cold disk
FORK_S = 10.0
TRIES = 5
WARM = "onward.agent.warm"


class WarmParent:
    """Keeps one warm parent running. `fork` answers 0 when the caller must start the process cold."""

    def __init__(self, settings: RunSettings, env: dict[str, str], say: Callable[[str], None]) -> None:
        self._preload = ",".join(settings.preload)
        self._job = settings.name
        self._env = env
        self._say = say
        self._child: Child | None = None
        self._ready: asyncio.Future[Ready] | None = None
        self._waiting: dict[int, asyncio.Future[Forked]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._stopped = False
        self._tries = 0
        self._reading: asyncio.Task[None] | None = None
        self._standstill = Standstill(0)

    @property
    def importing(self) -> bool:
        """One that is there and cannot fork yet."""
        return self.pid != 0 and self._ready is not None and not self._ready.done()

    @property
    def pid(self) -> int:
        return self._child.pid if self._child is not None and self._child.exit_code is None else 0

    def end_if_stopped(self) -> None:
        """One that is stopped forks nobody, and whoever asks it waits: another takes its place."""
        if self.pid != self._standstill.pid:
            self._standstill = Standstill(self.pid)
        if self.pid and self._standstill.lasts(time.monotonic()) > STOPPED_S and self._child is not None:
            self._child.signal(signal.SIGKILL)

    def start(self) -> None:
        ours, theirs = socket.socketpair()
        fd = theirs.fileno()
        command = run_module(WARM, str(os.getpid()), self._preload, str(fd), self._job)
        p = subprocess.Popen(command, pass_fds=[fd], env=self._env, stdin=subprocess.DEVNULL, start_new_session=True)
        theirs.close()
        self._child = Child(disown(p), self._on_exit)
        self._ready = asyncio.get_running_loop().create_future()
        self._reading = asyncio.get_running_loop().create_task(self._read(ours))

    async def _read(self, sock: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=sock)
        self._writer = writer
        ready, waiting = self._ready, self._waiting
        assert ready is not None
        try:
            first = msgspec.json.decode(await read_frame(reader), type=Ready)
            for problem in first.problems:
                self._say(problem)
            if first.threads > 1:
                return self._do_without(f"has {first.threads} threads after its imports, so it cannot be forked safely")
            if not ready.done():
                ready.set_result(first)
            self._tries = 0
            while True:
                answer = msgspec.json.decode(await read_frame(reader), type=Forked)
                future = waiting.pop(answer.process, None)
                if future is not None and not future.done():
                    future.set_result(answer)
        except (WireError, msgspec.MsgspecError):
            pass
        finally:
            writer.close()  # not self._writer: that may be the next one's

    def _do_without(self, why: str) -> None:
        self._say(f"the warm parent {why}; ranks are started cold from now on")
        if self._ready is not None:
            self._ready.cancel()
        self._stopped = True
        if self._child is not None:
            self._child.signal(signal.SIGKILL)

    def _on_exit(self, code: int) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_result(Forked(0, 0, "the warm parent died"))
        self._waiting = {}
        if self._ready is not None and not self._ready.done():
            self._ready.cancel()
        self._tries += 1
        if not self._stopped and self._tries <= TRIES:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            self._say(f"the warm parent ended ({how}); starting a new one, no rank is hurt")
            self.start()
        elif not self._stopped:
            self._say("the warm parent does not stay up; ranks are started cold from now on")

    async def fork(self, spec: RankSpec) -> int:
        ready = self._ready
        if ready is None or self.pid == 0:
            return 0
        try:
            await asyncio.wait_for(asyncio.shield(ready), READY_S)
        except asyncio.TimeoutError:
            return 0
        except asyncio.CancelledError:
            if not ready.cancelled():
                raise  # it is we who are ended
            return 0
        assert self._writer is not None
        future: asyncio.Future[Forked] = asyncio.get_running_loop().create_future()
        self._waiting[spec.process] = future
        body = spec.packed()
        self._writer.write(len(body).to_bytes(4, "big") + body)
        done, _ = await asyncio.wait({future}, timeout=FORK_S)
        if not done and self._child is not None:
            self._child.signal(signal.SIGKILL)
            await asyncio.wait({future}, timeout=FORK_S)
        answer = future.result() if future.done() else Forked(spec.process, 0, "no answer")
        pid = answer.pid or claimed(spec.claim, 0)
        if not pid:
            self._say(f"the warm parent could not fork ({answer.error}); starting cold")
        return pid

    def stop(self) -> None:
        self._stopped = True
        if self._reading is not None:
            self._reading.cancel()
        if self._child is not None:
            self._child.signal(signal.SIGKILL)
