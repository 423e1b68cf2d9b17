"""The processes of the ranks on this node, and of their spares: started, heard, watched and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from errno import ENOSPC
from pathlib import Path
from typing import Any

import psutil

from onward.agent import evidence
from onward.agent.birth import OTHER_PYTHON, Births
from onward.agent.effects import Effect, FetchLocal, KillProcess, StartProcess
from onward.agent.facts import Process
from onward.agent.helpers import Guard
from onward.agent.ledger import Ledger
from onward.agent.logic import AgentLogic
from onward.agent.logs import Follower
from onward.agent.observer import NO_PROCESS, Observer
from onward.agent.peers import Peers
from onward.agent.places import Places
from onward.agent.processes import Child, kill_tree, reap_orphans
from onward.agent.settings import RunSettings, Streams
from onward.agent.warmth import WarmParent
from onward.agent.witness import Witness
from onward.errors import WireError
from onward.wire import memory
from onward.wire.frames import decode, pack, read_frame
from onward.wire.messages import Hello, Injected, encoder, from_rank

NO_ROOM_S = 10.0  # between two looks at a machine that had no memory to spare
LOOK_S = 1.0  # between two looks at what is left, while there are spares
SCARCE_BYTES = 256 << 20  # or an eighth of what there is: with less than that left the spares end
REST_S = 60.0  # then there are none for so long, and for twice as long the next time


class Crew:
    """Carries out what the logic wants of processes, and tells it what becomes of them (`apply`)."""

    def __init__(
        self,
        settings: RunSettings,
        logic: AgentLogic,
        places: Places,
        peers: Peers,
        births: Births,
        ledger: Ledger,
        witness: Witness,
        observer: Observer,
        apply: Callable[[Sequence[Effect]], None],
    ) -> None:
        self.after_exit: Callable[[], None] = lambda: None
        self._settings, self._logic, self._places, self._peers = settings, logic, places, peers
        self._births, self._ledger, self._witness, self._observer = births, ledger, witness, observer
        self._apply = apply
        self._guard = Guard(places.run_dir, settings.name)
        self._warm: WarmParent | None = None
        self._children: dict[int, Child] = {}  # process number -> child
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._followers: dict[int, list[Follower]] = {}
        self._strangers: set[int] = set()  # children that we do not know yet
        self._no_room_until = 0.0
        self._looked_at = 0.0
        self._rest_s = REST_S
        self._slow_since = 0  # pid of the warm parent that somebody had to wait for

    # ------------------------------------------------------------------------------------------ starting

    def warm_up(self) -> None:
        """From now on new processes are forked from one that has imported what they need."""
        if self._settings.warm and not os.environ.get(OTHER_PYTHON):
            self._warm = WarmParent(self._settings, {**os.environ, "OMP_NUM_THREADS": "1"}, self._observer.note)
            self._warm.start()

    @property
    def warm_pid(self) -> int:
        return self._warm.pid if self._warm is not None else 0

    async def start(self, effect: StartProcess) -> None:
        p = self._logic.processes.get(effect.process)
        if p is None:
            return
        if effect.kept_at:
            await self._take_over(p, effect.kept_at)
        elif effect.log_at and not await self._learn(p, effect.log_at):
            self._apply(self._logic.on_exit(p.number, NO_PROCESS, time.monotonic()))
            return
        self._say_if_slow(p)
        orders, number, gauges = self._logic.orders, p.number, self._ledger.gauges
        try:
            pid = await self._births.start(p, self._warm, orders.master if orders else "")
            gauges.open(number, self._places.of(p)[0])
        except OSError as e:
            what = "a spare" if p.spare else "a process"
            full = f"; look with df at {self._places.run_dir} and {self._places.log_dir}" if e.errno == ENOSPC else ""
            self._observer.note(f"rank {p.rank}: could not start {what}: {e}{full}")
            self._apply(self._logic.on_exit(number, NO_PROCESS, time.monotonic()))
            return
        self._follow(p, *self._places.logs(p))
        gauges.started(number, pid)
        self._logic.on_started(number, pid)
        self._guard.add(pid, self._places.mark(number))
        self._children[number] = Child(pid, lambda code: self._on_exit(number, code))
        if p.killed:
            self._children[number].signal(signal.SIGKILL)
        self._apply([])

    def _say_if_slow(self, p: Process) -> None:
        """A replacement takes milliseconds; people should know why one takes longer. Once for each warm parent."""
        warm = self._warm
        if p.spare or p.incarnation < 2 or warm is None or not warm.importing or warm.pid == self._slow_since:
            return
        self._slow_since = warm.pid
        spare = "no spare is ready and " if self._settings.spares != "none" else ""
        why = f"{spare}the warm parent has still to import torch"
        self._observer.note(f"rank {p.rank}: {why}, so its process starts cold: seconds, not milliseconds")

    async def fetch_local(self, effect: FetchLocal) -> None:
        p = self._logic.processes.get(effect.process)
        if p is not None and p.alive:
            await self._take_over(p, effect.kept_at)
            self._logic.changed = True
            self._apply([])

    async def _take_over(self, p: Process, kept_at: str) -> None:
        """Fetch what another node kept for a rank whose own node is lost."""
        try:
            kept = await self._peers.fetch(kept_at, p.rank, p.attempt)
        except WireError as e:
            self._observer.note(f"rank {p.rank}: its local state could not be had: {e}")
            return
        self._places.put_local(p, kept.slots)
        self._logic.take_over(p.rank, kept.log)

    async def _learn(self, p: Process, log_at: str) -> bool:
        """Fetch what the script exchanged before its first step, on the node that has the rank now."""
        try:
            kept = await self._peers.fetch(log_at, p.rank, p.attempt)
        except WireError as e:
            self._observer.detail(f"rank {p.rank}: the log of its set-up could not be had: {e}")
            return False
        self._logic.take_over(p.rank, kept.log)
        return True

    def has_room(self) -> bool:
        """A spare may take what a rank takes; a machine that this would fill is better off without."""
        if time.monotonic() < self._no_room_until:
            return False
        known = self._logic.current.values() or self._children  # one that stands by has spares only
        pids = [c.pid for n, c in self._children.items() if n in known]
        try:
            needed = max((psutil.Process(pid).memory_info().rss for pid in pids[:1]), default=0)
        except psutil.Error:
            return False
        if memory.available_bytes() > 2 * needed + SCARCE_BYTES:
            return True
        if not self._no_room_until:
            self._observer.note("not enough free memory for spares; a replacement will be forked when it is needed")
        self._no_room_until = time.monotonic() + NO_ROOM_S
        return False

    def make_room(self) -> None:
        """End the spares before the kernel ends somebody for lack of memory: in a pod it would be everybody."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_S or not any(p.spare and p.alive for p in self._logic.processes.values()):
            return
        self._looked_at = now
        left = memory.available_bytes()
        if left >= min(SCARCE_BYTES, memory.limit_bytes() // 8):
            return
        self._no_room_until = now + self._rest_s
        self._rest_s *= 2
        self._observer.note(f"only {left >> 20} MB of memory are left: ending the spares, the ranks need it more")
        self._apply(self._logic.end_spares())

    # ------------------------------------------------------------------------------------------ talking

    def admit(self, hello: Hello, writer: asyncio.StreamWriter) -> None:
        """The connection is one of our processes'. WireError when it is not."""
        known = self._logic.processes.get(hello.process)
        if known is None or not known.alive or hello.process in self._writers:
            raise WireError(f"process {hello.process} is no process of this job, or no more, or is here already")
        self._writers[hello.process] = writer

    async def listen(self, hello: Hello, reader: asyncio.StreamReader) -> None:
        """Until it hangs up."""
        message: object = hello
        with contextlib.suppress(WireError):
            while True:
                if isinstance(message, Injected):
                    self._on_injected(message, hello.pid)
                self._apply(self._logic.on_rank(hello.process, message))
                message = decode(from_rank, await read_frame(reader))

    def _on_injected(self, message: Injected, pid: int) -> None:
        """A rank announces an injection. Heeded from a dead one too: news of its death can overtake its last word."""
        self._logic.injections = [i for i in self._logic.injections if i.id != message.id]
        self._witness.announced(message.id, pid)

    def send(self, number: int, message: object) -> None:
        writer = self._writers.get(number)
        if writer is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                writer.write(pack(encoder, message))

    def signal_rank(self, rank: int, number: int, injection: int) -> None:
        """Carry out an injection from the outside, as a signal."""
        child = self._children.get(self._logic.current.get(rank, -1))
        if child is not None:
            self._witness.announced(injection, child.pid)
            child.signal(number)

    # ------------------------------------------------------------------------------------------ watching

    def look(self) -> None:
        """Read the pages and logs of those who are alive, and see that helpers are awake."""
        self._guard.end_if_stopped()
        if self._warm is not None:
            self._warm.end_if_stopped()
        for p in list(self._logic.processes.values()):
            if p.alive:
                self._ledger.gauges.read(p)
        for followers in self._followers.values():
            for f in followers:
                f.poll()

    def reap(self, manager_pid: int) -> None:
        """What our processes had started and left behind has become our child."""
        known = {c.pid for c in self._children.values()} | {manager_pid, self._guard.pid, self.warm_pid}
        if not self._births.under_way:
            self._strangers = reap_orphans(known | evidence.helpers, self._strangers)

    def _follow(self, p: Process, out: Path, err: Path) -> None:
        s = self._settings
        local = p.rank % s.nproc
        files_only = s.redirects.get(local, Streams.NONE) & ~s.tee.get(local, Streams.NONE)
        shown = s.shown_ranks is None or local in s.shown_ranks
        followers = []
        for path, stream, flag in ((out, "out", Streams.OUT), (err, "err", Streams.ERR)):
            if shown and not files_only & flag:
                followers.append(Follower(path, self._emitter(p, stream)))
        self._followers[p.number] = followers

    def _emitter(self, p: Process, stream: str) -> Any:
        def emit(text: str) -> None:
            if not p.spare and (not p.stand_in or (p.report is not None and p.report.stage not in ("setup", "parked"))):
                self._observer.line(p.rank, stream, text)

        return emit

    # ------------------------------------------------------------------------------------------ ending

    def kill(self, effect: KillProcess) -> None:
        child = self._children.get(effect.process)
        if child is None:
            return
        if not effect.gently:
            child.signal(signal.SIGKILL)
            return
        child.signal(signal.SIGTERM)
        child.signal(signal.SIGCONT)
        grace = self._settings.grace_s if self._logic.stopping else min(self._settings.grace_s, 2.0)
        asyncio.get_running_loop().call_later(grace, child.signal, signal.SIGKILL)

    def kill_all(self) -> None:
        for child in self._children.values():
            child.signal(signal.SIGKILL)

    def _on_exit(self, number: int, code: int) -> None:
        died_at = time.monotonic()
        self._sweep(number)
        p, pid = self._logic.processes.get(number), self._children[number].pid
        for follower in self._followers.pop(number, []):
            follower.poll(last=True)
        self._guard.drop(pid)
        self._writers.pop(number, None)
        if p is not None:
            self._ledger.gauges.read(p)
        self._witness.exited(pid, code)
        if p is not None and not p.spare:
            local_rank = p.rank % self._settings.nproc
            self._ledger.obituaries.dead(p, local_rank, code, self._places.logs(p), self._places.error_file(p))
        self._apply(self._logic.on_exit(number, code, died_at))
        self._children.pop(number, None)
        self._ledger.gauges.close(number)
        self.after_exit()

    def _sweep(self, number: int) -> None:
        child = self._children.get(number)
        if child is not None:
            kill_tree(child.pid, self._places.mark(number))

    def end(self) -> None:
        """Nobody stays, nor what they have started."""
        self.kill_all()
        for number in list(self._children):
            self._sweep(number)
        if self._warm is not None:
            self._warm.stop()

    def dismiss_guard(self) -> None:
        """Nothing is left to sweep up, should we be killed."""
        self._guard.stop()
