"""How many agents one manager can take care of: real sockets, no torch.

A manager on one core; on the other, N agents of one rank each that speak the real messages and obey at once. Shows what
the manager needs when nothing happens, and how long after the death of one rank all others are interrupted and formed
anew. On a busy machine read its processor time: until all were interrupted (told), and until all were formed anew.

    python bench/control_plane.py 100 1000 10000

TLS is on where the address is not a loopback one; so, as root, in a network of its own:

    unshare -n sh -c 'ip link set lo up; ip addr add 10.78.0.1/32 dev lo
                      exec python bench/control_plane.py --address 10.78.0.1 1000'
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import gc
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil

from onward.core.facts import FaultReport, Progress, RankFacts, Scope, Stage
from onward.core.job import Limits
from onward.core.membership import Member, facts_s
from onward.core.policy import Policy
from onward.core.published import Rules
from onward.errors import WireError
from onward.manager.__main__ import Spec
from onward.wire.connect import connect
from onward.wire.frames import FrameReader, decode, pack
from onward.wire.identity import Identity, derived
from onward.wire.messages import AgentFacts, Orders, RankOrder, encoder, from_manager

TOKEN = bytes(range(32))
LIMIT_S = 300.0
IDLE_S = 5.0


@dataclass
class Agent:
    """One node with one rank."""

    number: int
    fleet: Fleet
    writer: asyncio.StreamWriter | None = None
    version: int = 0
    orders: Orders | None = None
    rank: RankFacts | None = None
    interrupted_at: float = 0.0
    begun: bool = False
    member: Member = field(init=False)

    def __post_init__(self) -> None:
        name = f"{self.number:08x}"
        self.member = Member(name, f"n{self.number}", peer="127.0.0.1|1", manager="127.0.0.1|1", wanted=self.number)

    async def live(self, port: int) -> None:
        while self.writer is None:
            with contextlib.suppress(WireError, OSError):  # a manager that was busy with others; so do agents
                _, self.writer = await connect(self.fleet.address, port, self.fleet.identity, 60.0, 120.0)
        ear = Ear(self)
        self.writer.transport.set_protocol(ear)
        self.tell()
        await ear.over
        raise WireError("the manager has hung up")

    def obey(self, orders: Orders) -> None:
        self.orders = orders
        self.fleet.phases[orders.phase] = self.fleet.phases.get(orders.phase, 0) + 1
        for order in orders.ranks:
            self._follow(order)
        self.tell()

    def _follow(self, order: RankOrder) -> None:
        now, g = self.rank, order.generation
        if now is None or order.incarnation > now.incarnation:
            stage = Stage.SETUP if order.want == "start" else Stage.PARKED
            steps = (9, 10) if self.begun else ()
            self.rank = RankFacts(
                order.rank, self.number, order.incarnation, 4711, stage, 0, True, local_steps=steps, begun=10
            )
            return
        if order.want == "pause" and now.stage is not Stage.PARKED:
            if not self.interrupted_at:
                self.interrupted_at = time.monotonic()
            self._set(stage=Stage.PAUSED, generation=g, resumed=False)
        elif order.want == "form":
            self._set(stage=Stage.FORMED, generation=g)
        elif order.want == "run" and not self.begun and order.form is not None and not order.form.begin:
            self._set(stage=Stage.READY, generation=g)
        elif order.want == "run":
            self.begun = True
            held = {"step": 10, "clean": True, "local_steps": (9, 10), "scope": Scope.STEP}
            self._set(stage=Stage.TRAINING, generation=g, resumed=True, progress=Progress(step=10, step_s=0.5), **held)
            self.fleet.running.add((g, self.number))

    def _set(self, **changes: Any) -> None:
        assert self.rank is not None
        self.rank = dataclasses.replace(self.rank, **changes)

    def die(self) -> None:
        assert self.rank is not None
        fault = FaultReport("signal", self.rank.rank, self.rank.incarnation, step=10, text="SIGKILL", at=time.time())
        self._set(stage=Stage.EXITED, exit_code=-9, fault=fault)
        self.tell()

    def tell(self) -> None:
        o = self.orders
        self.version += 1
        facts = AgentFacts(
            agent=self.member,
            version=self.version,
            term=o.term if o else 0,
            seat=o.seat if o else "",
            age=o.age if o else [],
            orders_version=o.version if o else 0,
            generation=o.generation if o else 0,
            node=o.node if o else -1,
            ranks=[self.rank] if self.rank else [],
        )
        assert self.writer is not None
        self.writer.write(pack(encoder, facts))


class Ear(asyncio.Protocol):
    """Listens for one agent, without a task of its own: on one core ten thousand of those would be what is measured."""

    def __init__(self, agent: Agent) -> None:
        self._agent, self._frames = agent, FrameReader()
        self.over = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            message = decode(from_manager, body)
            if isinstance(message, Orders):
                self._agent.obey(message)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)


@dataclass
class Fleet:
    size: int
    address: str
    port: int
    identity: Identity
    manager: psutil.Process
    phases: dict[str, int] = field(default_factory=dict)
    running: set[tuple[int, int]] = field(default_factory=set)  # (generation, agent)

    async def measure(self) -> dict[str, float]:
        agents = [Agent(i, self) for i in range(self.size)]
        began = time.monotonic()
        lives = []
        for i in range(0, self.size, 200):
            lives += [asyncio.ensure_future(a.live(self.port)) for a in agents[i : i + 200]]
            await asyncio.sleep(0.05)
        beats = asyncio.ensure_future(self._beat(agents))
        await self._until(lambda: self._all_run(agents), lives)
        formed = time.monotonic() - began
        gc.collect()
        gc.freeze()  # each agent is a process of its own, and does not wait for ten thousand others' garbage
        await asyncio.sleep(1.0)
        load = await self._idle()
        for a in agents:
            a.interrupted_at = 0.0
        self.running.clear()  # of the generation that is over now
        before, own = self._cpu(), time.process_time()
        struck = time.monotonic()
        agents[self.size // 2].die()
        others = [a for a in agents if a is not agents[self.size // 2]]
        await self._until(lambda: all(a.interrupted_at for a in others), lives)
        told = self._cpu() - before
        delays = sorted(a.interrupted_at - struck for a in others)
        await self._until(lambda: self._all_run(agents), lives)
        again = time.monotonic() - struck
        spent, own = self._cpu() - before, time.process_time() - own
        beats.cancel()
        for life in lives:
            life.cancel()
        return {
            "agents": self.size,
            "generation": max(g for g, _ in self.running),
            "start_s": formed,
            "idle_cpu": load,
            "interrupted_p50_s": statistics.median(delays),
            "interrupted_p99_s": delays[int(0.99 * len(delays))],
            "again_s": again,
            "told_cpu_s": told,
            "manager_cpu_s": spent,
            "agents_cpu_s": own,
            "memory_mb": self.manager.memory_info().rss / 1e6,
        }

    def _all_run(self, agents: list[Agent]) -> bool:
        newest = max((g for g, _ in self.running), default=0)
        return sum(1 for g, _ in self.running if g == newest) == self.size

    async def _until(self, test: Any, lives: list[Any]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not test():
            failed = next((x for x in lives if x.done() and not x.cancelled()), None)
            if failed is not None:
                raise SystemExit(f"an agent ended: {failed.exception()!r}")
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.size} agents: not there after {LIMIT_S:g} s; orders seen: {self.phases}")
            await asyncio.sleep(0.005 if self.size < 2000 else 0.05)

    async def _beat(self, agents: list[Agent]) -> None:
        period = facts_s(self.size)
        while True:
            share = max(1, len(agents) // 20)
            for i in range(0, len(agents), share):
                for a in agents[i : i + share]:
                    if a.writer is not None:  # also before the job begins, or they would be taken for gone
                        a.tell()
                await asyncio.sleep(period / 20)

    def _cpu(self) -> float:
        """CPU seconds of the manager so far."""
        return float(sum(self.manager.cpu_times()[:2]))

    async def _idle(self) -> float:
        """Share of its core that the manager needs while nothing happens."""
        before, at = self._cpu(), time.monotonic()
        await asyncio.sleep(IDLE_S)
        return (self._cpu() - before) / (time.monotonic() - at)


def measure(size: int, core: int, address: str = "127.0.0.1") -> dict[str, float]:
    sock = socket.create_server((address, 0), backlog=1024)
    port = sock.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        identity = derived(TOKEN, Path(directory))
        spec = Spec(
            fd=sock.fileno(),
            parent=os.getpid(),
            world_size=size,
            nodes=size,
            policies=[Policy.RETRY, Policy.RECOVER_IN_PLACE, Policy.EXIT],
            limits=Limits(),
            hang_floor_s=30.0,
            hang_first_s=120.0,
            node_timeout_s=60.0,
            fail_stop_s=0.0,
            rules=Rules(),
            seat=f"{0:08x}",
            job="",
            name="bench",
            journal=f"{directory}/journal",
        )
        env = {**os.environ, **identity.environment, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "onward.manager", msgspec.json.encode(spec).decode()]
        with subprocess.Popen(command, pass_fds=[sock.fileno()], env=env) as manager:
            try:
                os.sched_setaffinity(manager.pid, {core})
                sock.close()  # or agents would wait for one that has died
                return asyncio.run(Fleet(size, address, port, identity, psutil.Process(manager.pid)).measure())
            finally:
                manager.kill()


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--address", default="127.0.0.1")
    words.add_argument("sizes", type=int, nargs="*", default=[100, 1000])
    args = words.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
    head = ("agents", "start", "idle", "p50", "p99", "again", "CPU: told", "manager", "agents", "memory")
    print(" ".join(f"{word:>{width}}" for word, width in zip(head, (7, 8, 7, 8, 8, 8, 13, 8, 8, 9), strict=True)))
    for size in args.sizes:
        r = measure(size, cores[0], args.address)
        print(
            f"{size:>7} {r['start_s']:>6.2f} s {r['idle_cpu']:>6.1%} {r['interrupted_p50_s'] * 1e3:>5.0f} ms "
            f"{r['interrupted_p99_s'] * 1e3:>5.0f} ms {r['again_s']:>6.2f} s "
            f"{r['told_cpu_s']:>11.2f} s {r['manager_cpu_s']:>6.2f} s {r['agents_cpu_s']:>6.2f} s "
            f"{r['memory_mb']:>6.0f} MB",
            flush=True,
        )


if __name__ == "__main__":
    main()
