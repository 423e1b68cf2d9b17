"""The way to the manager inside a job's pods: what it says is insight, what it is told are facts of the cluster.

A job need not have a manager, and the way to it may be cut: then pods are all that is known, and that must do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from onward.api.ascendjob import MANAGER_PORT
from onward.api.env import door_of
from onward.core.jobs import Insight
from onward.core.policy import Policy
from onward.errors import WireError
from onward.kube.client import ApiError, Unreachable, backoff_s
from onward.kube.informer import happened
from onward.log import get_logger
from onward.operator.eyes import RETURN_S, Memory, now
from onward.wire.connect import connect
from onward.wire.frames import decode, pack, read_frame
from onward.wire.identity import Identity, kept_in_memory
from onward.wire.messages import ClusterFacts, JobFacts, NodeFault, encoder, from_manager

log = get_logger("operator.link")

CONNECT_S = 2.0
GREETING_S = 5.0
SILENCE_S = 6.0  # a manager speaks every second
MANNED_S = 3.0  # one that is not in office after so long is not the one
DESPERATE = 6  # tries in vain, about so many seconds in all, before others are asked than the leader
MOST = 16
FAITHFUL = 3  # tries at one door before others are looked for: its host starts a manager again
SLOWEST_S = 15.0  # between two tries where nobody answers
NUMBERS_S = 30.0  # step and goodput alone are written down so often at most
OPERATOR = f"{socket.gethostname()}-{os.getpid()}"


@dataclass(frozen=True)
class Situation:
    """What the cluster knows of a job's pods, as of the last look."""

    leader: str = ""  # address of its pod
    others: tuple[str, ...] = ()  # of the other pods that run
    alive: frozenset[str] = frozenset()  # uids of pods that are there and have not ended
    begun: bool = False  # a manager was in office in these pods
    trouble: tuple[tuple[str, str], ...] = ()
    coming: tuple[tuple[str, str], ...] = ()
    faults: tuple[NodeFault, ...] = ()


class Link:
    """One job's. `changed` is called when there is something new; `really_gone` asks the server about pods."""

    def __init__(
        self,
        memory: Memory,
        changed: Callable[[], None],
        really_gone: Callable[[list[str]], Awaitable[list[str]]],
    ) -> None:
        self._memory, self._changed, self._really_gone = memory, changed, really_gone
        self._situation = Situation()
        self._moved = asyncio.Event()
        self._gone: set[str] = set()
        self._pods: list[str] = []  # that the manager has named
        self._unmanned = False  # the leader has one that is not in office
        self._answers: list[str] = []  # of managers that are not in office, in this round: why they never will be
        self._doors: list[str] = []
        self._known: Identity | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._said: ClusterFacts | None = None
        self._task: asyncio.Task[None] | None = None
        self._numbers_at = float("-inf")

    def update(self, situation: Situation) -> None:
        """Called with each look at the job."""
        if situation != self._situation:
            self._situation = situation
            self._moved.set()
        if self._task is None and self._memory.token and (situation.leader or situation.others):
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _identity(self) -> Identity:
        token = self._memory.token.encode()
        if self._known is None or self._known.token != token:
            self._known = kept_in_memory(token)
        return self._known

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        failures, leader = 0, ""
        while True:
            if leader != self._situation.leader:  # another pod: nobody has been asked there yet
                failures, leader = 0, self._situation.leader
            spoke = False
            targets, asked = self._targets(failures), self._situation
            self._answers = []
            patient = failures < FAITHFUL and targets[:1] == self._doors[:1]
            for door in targets[:1] if patient else targets:
                spoke = await self._visit(door)
                self._lost()
                if spoke:
                    break
            failures = 0 if spoke else failures + 1
            self._take_stock(asked)
            self._moved.clear()
            await happened(self._moved, backoff_s(failures, 0.2, SLOWEST_S))

    def _targets(self, failures: int) -> list[str]:
        """Where it was last, then the leader. Others only when it is not there: whoever is asked starts one."""
        s = self._situation
        elsewhere = not s.leader or self._unmanned or failures >= DESPERATE
        addresses = [*([s.leader] if s.leader else []), *(s.others[:MOST] if elsewhere else ())]
        found = [*self._doors[:1], *(f"{a}|{MANAGER_PORT}" for a in addresses), *self._doors[1:MOST]]
        alive = {s.leader, *s.others}
        return [door for door in dict.fromkeys(found) if door.rpartition("|")[0] in alive]

    async def _visit(self, door: str) -> bool:
        """One connection from beginning to end. True: there was a manager in office."""
        host, _, port = door.rpartition("|")
        in_office, came = False, asyncio.get_running_loop().time()
        speaking: asyncio.Task[None] | None = None
        writer: asyncio.StreamWriter | None = None
        try:
            reader, opened = await connect(host, int(port), self._identity(), CONNECT_S, GREETING_S)
            writer = self._writer = opened
            self._said = None
            speaking = asyncio.get_running_loop().create_task(self._speak())
            while True:
                message = decode(from_manager, await asyncio.wait_for(read_frame(reader), SILENCE_S))
                if not isinstance(message, JobFacts):
                    continue
                in_office = in_office or message.term > 0
                if message.pods != self._pods:
                    self._pods = message.pods
                    self._moved.set()
                if in_office:
                    self._unmanned = False
                    self._hear(door, message)
                    self._despair(message.hopeless, self._situation.alive)
                elif not self._waits_for_all(message) and asyncio.get_running_loop().time() - came > MANNED_S:
                    self._unmanned = True
                    self._answers.append(message.hopeless)
                    return False
        except ConnectionRefusedError:
            if not self._doors and not self._situation.begun:  # nobody is there to be waited for
                self._memory.insight_until = min(self._memory.insight_until, now())
        except (WireError, OSError, ValueError, asyncio.TimeoutError) as e:
            log.debug("%s: %s", door, str(e) or type(e).__name__)
        finally:
            if speaking is not None:
                speaking.cancel()
            self._writer = None
            if writer is not None:
                writer.close()
        return in_office

    def _waits_for_all(self, facts: JobFacts) -> bool:
        return facts.starts and not self._situation.begun

    def _take_stock(self, asked: Situation) -> None:
        """When all pods were asked, none has a manager in office, and one says that there will never be any."""
        why = next((text for text in self._answers if text), "")
        if len(self._answers) == bool(asked.leader) + len(asked.others) == len(asked.alive):
            self._despair(why, asked.alive)

    def _despair(self, why: str, pods: frozenset[str]) -> None:
        if why and self._memory.hopeless != (why, pods):
            self._memory.hopeless = (why, pods)
            self._changed()

    async def _speak(self) -> None:
        """Say all there is to say, whenever it has changed."""
        while self._writer is not None:
            self._moved.clear()
            try:
                facts = await self._facts()
            except (ApiError, Unreachable) as e:
                log.info("%s", e)
                await asyncio.sleep(1.0)
                continue
            if facts != self._said and self._writer is not None:
                with contextlib.suppress(ConnectionError, RuntimeError):
                    self._writer.write(pack(encoder, facts))
                self._said = facts
            await self._moved.wait()

    async def _facts(self) -> ClusterFacts:
        s = self._situation
        missing = [uid for uid in self._pods if uid not in s.alive and uid not in self._gone]
        if missing:
            self._gone |= set(await self._really_gone(missing))
        return ClusterFacts(
            operator=OPERATOR,
            gone=sorted(self._gone),
            trouble=dict(s.trouble),
            coming=dict(s.coming),
            faults=list(s.faults),
        )

    def _hear(self, door: str, facts: JobFacts) -> None:
        self._doors = list(dict.fromkeys([door, *([facts.seat] if facts.seat else []), *facts.managers]))
        memory = self._memory
        memory.managers = tuple(door_of(host, port) for host, _, port in (d.rpartition("|") for d in self._doors))
        new = insight(facts)
        old = memory.insight
        memory.insight, memory.lately = new, None
        due = now() >= self._numbers_at + NUMBERS_S and (old is None or old.report != new.report)
        if due or old is None or replace(old, report={}) != replace(new, report={}):
            self._numbers_at = now()
            self._changed()

    def _lost(self) -> None:
        memory = self._memory
        if memory.insight is not None:
            memory.insight, memory.lately, memory.insight_until = None, memory.insight, now() + RETURN_S
            self._changed()


def insight(facts: JobFacts) -> Insight:
    """What a manager says, as decisions need it."""
    recovering = ""
    if facts.incident:
        told = (facts.why,) if facts.why.startswith(facts.fault) else (facts.fault, facts.why)
        waits = f"waiting for {facts.waiting}" if facts.waiting else ""
        recovering = "; ".join(t for t in (*told, waits) if t)
    degraded = ""
    if 0 < facts.ranks < facts.world_size:
        degraded = f"{facts.ranks} of {facts.world_size} ranks take part, with the same global batch"
    return Insight(
        phase=facts.phase,
        over=facts.over,
        recovers=bool({Policy.RECOVER.value, Policy.ELASTIC.value} & set(facts.policies)),
        pods=frozenset(facts.pods),
        placed=frozenset(facts.placed),
        ailing=facts.ailing,
        unfit=facts.unfit,
        left=facts.left,
        incident=facts.incident,
        recovering=recovering,
        last=facts.last,
        story=facts.story,
        degraded=degraded,
        report={
            "policy": facts.policy if facts.incident else "",
            "lastIncident": facts.story or None,
            "goodput": f"{facts.goodput:.1%}",
            "step": facts.step if facts.step >= 0 else None,
        },
    )
