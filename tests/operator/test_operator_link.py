"""Operator and manager: what happens inside shows outside, and what only the cluster knows is heard inside.

Operator, API server, manager and wire are real. Agents are played, as far as a manager needs them; nobody trains.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from kernel import free_port
from played import facts_of
from waiting import until_async
from world import Fate, World, a_job, end, operated

from onward.core.facts import Progress, RankFacts, Scope, Stage
from onward.core.intake import Notice
from onward.core.job import Limits
from onward.core.membership import Member
from onward.core.policy import parse_policies
from onward.errors import WireError
from onward.kube.access import Access
from onward.kube.client import Client
from onward.kube.objects import NODES, PODS, SECRETS, name_of, uid_of
from onward.manager.server import ManagerServer
from onward.manager.settings import ManagerSettings
from onward.operator import eyes, link
from onward.operator.eyes import JOBS, Memory
from onward.wire.frames import decode, greet_server, pack, read_frame
from onward.wire.identity import Identity
from onward.wire.messages import FaultRequest, Note, Orders, encoder, from_manager

LIMIT_S = 120.0
STAGES = {"start": Stage.SETUP, "form": Stage.FORMED, "run": Stage.TRAINING, "pause": Stage.PAUSED}


class PlayedAgent:
    """Does what it is told, at once. One rank."""

    def __init__(self, pod: str, node: int, manager: str, token: bytes) -> None:
        self.member = Member(id=f"agent-{pod[:8]}", host=f"node{node}", nproc=1, nodes=2, wanted=node, pod=pod)
        self._manager, self._token, self._node = manager, token, node
        self.orders: Orders | None = None
        self._version = 0
        self.notes: list[str] = []
        self.killed = 0  # the incarnation of its rank that has died

    async def run(self) -> None:
        while True:
            with contextlib.suppress(WireError, OSError):
                await self._visit()
            await asyncio.sleep(0.05)  # before it calls again, as an agent does

    async def _visit(self) -> None:
        host, _, port = self._manager.rpartition("|")
        reader, writer = await asyncio.open_connection(host, int(port))
        self._writer = writer
        speaking = asyncio.ensure_future(self._speak(writer))
        try:
            await greet_server(reader, writer, self._token, 5.0)
            while True:
                message = decode(from_manager, await read_frame(reader))
                if isinstance(message, Orders):
                    self.orders = message
                    self._say(writer)
                elif isinstance(message, Note):
                    self.notes.append(message.text)
        finally:
            speaking.cancel()
            writer.close()

    async def _speak(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await asyncio.sleep(0.1)  # the beat of an agent
            self._say(writer)

    def _say(self, writer: asyncio.StreamWriter) -> None:
        o, self._version = self.orders, self._version + 1
        ranks = [self._rank(o, order) for order in o.ranks] if o is not None else []
        record = {"seat": o.seat, "node": o.node, "age": o.age, "record": o.job} if o is not None else {}
        writer.write(pack(encoder, facts_of(self.member, self._version, o, ranks, **record)))

    def _rank(self, o: Orders, order: object) -> RankFacts:
        stage = STAGES.get(getattr(order, "want", ""), Stage.PARKED)
        dead = order.incarnation == self.killed  # type: ignore[attr-defined]
        step = self._version if stage is Stage.TRAINING else 5
        return RankFacts(
            rank=order.rank,  # type: ignore[attr-defined]
            node=o.node,
            incarnation=order.incarnation,  # type: ignore[attr-defined]
            stage=Stage.EXITED if dead else stage,
            exit_code=-9 if dead else None,
            generation=order.generation,  # type: ignore[attr-defined]
            library=True,
            step=step,
            clean=True,
            scope=Scope.STEP,
            resumed=stage is Stage.TRAINING,
            local_steps=(step,),
            progress=Progress(step=step, launched=1, step_s=0.1),
        )

    def ask(self, notice: Notice) -> None:
        self._writer.write(pack(encoder, FaultRequest(uid=uuid.uuid4().hex, notice=notice)))


class Inside:
    """The manager and the agents of a job of two pods."""

    def __init__(self, world: World, fate: Fate) -> None:
        self.world, self.fate = world, fate
        self.agents: dict[str, PlayedAgent] = {}
        self._tasks: dict[str, asyncio.Future[None]] = {}

    async def begin(self, seat: str) -> None:
        """`seat`: the pod that counts twice when there are two."""
        secret = await self.world.client.get(SECRETS, "job-onward", self.world.namespace)
        self.token = base64.b64decode(secret["data"]["token"])
        self.address = str(self.world.pod("job-master-0")["status"]["podIP"])
        self.host("manager", self.address, seat)
        for node, pod in enumerate(("job-master-0", "job-worker-0")):
            self.join(pod, node)

    def host(self, name: str, address: str, seat: str) -> None:
        """A manager, whether or not anybody comes."""
        settings = ManagerSettings(
            world_size=2,
            nodes=2,
            policies=parse_policies("recover"),
            limits=Limits(),
            node_timeout_s=1.0,
            hang_first_s=LIMIT_S,
            hang_floor_s=LIMIT_S,
            seat=f"agent-{uid_of(self.world.pod(seat))[:8]}",
        )
        sock = socket.create_server((address, 9601))
        self.server = ManagerServer(settings, Identity(self.token), None)
        self._tasks[name] = asyncio.ensure_future(self.server.serve(sock, idle_s=LIMIT_S))

    def join(self, pod: str, node: int, knows: PlayedAgent | None = None) -> PlayedAgent:
        """`knows`: it was told the same as that one."""
        agent = PlayedAgent(uid_of(self.world.pod(pod)), node, f"{self.address}|9601", self.token)
        agent.orders = knows.orders if knows is not None else None
        self.agents[pod] = agent
        self._tasks[pod] = asyncio.ensure_future(agent.run())
        return agent

    async def fall_silent(self, pod: str) -> None:
        await end(self._tasks.pop(pod))

    async def close(self) -> None:
        await end(*self._tasks.values())


def tell(real: Access, story: Callable[[World, Inside], Awaitable[None]]) -> None:
    fate = Fate()

    @contextlib.asynccontextmanager
    async def inside(world: World) -> AsyncIterator[Inside]:
        found = Inside(world, fate)
        try:
            yield found
        finally:
            await found.close()

    async def go() -> None:
        async with Client(real) as client:
            world = World(client, f"l-{uuid.uuid4().hex[:8]}")
            world.address = f"127.{os.getpid() % 200 + 20}.{uuid.uuid4().int % 250}"
            await world.build()
            async with operated(real, world, fate), inside(world) as inner:
                job = a_job("job", 1, {"fault-scheduling": "grace"}, {"recover-strategy": "recover"})
                await client.create(JOBS, job, world.namespace)
                await world.until(lambda: world.state("job") == "Running", "it runs")
                await story(world, inner)

    asyncio.run(asyncio.wait_for(go(), LIMIT_S))


def status(world: World) -> dict[str, object]:
    return world.job("job").get("status") or {}


def launched(world: World) -> int:
    """The last wave of which all pods have been seen."""
    record = status(world).get("record")
    return int(record["launched"]) if isinstance(record, dict) else -1


def has(world: World, kind: str, value: str) -> bool:
    conditions = status(world).get("conditions") or []
    assert isinstance(conditions, list)
    return any(c["type"] == kind and c["status"] == value for c in conditions)


def test_a_pod_that_its_manager_calls_unfit_is_replaced_and_the_others_stay(real: Access) -> None:
    async def story(world: World, inner: Inside) -> None:
        await inner.begin("job-master-0")
        await world.until(lambda: "goodput" in status(world), "the manager is heard")
        master, worker = world.pod("job-master-0"), world.pod("job-worker-0")
        inner.agents["job-master-0"].ask(Notice(op="report", level="separate", code="fan-1", node="1"))
        await world.until(lambda: uid_of(world.pod("job-worker-0")) not in ("", uid_of(worker)), "it is replaced")
        fresh = world.pod("job-worker-0")
        assert fresh["metadata"]["annotations"]["onward.dev/avoid-nodes"] == worker["spec"]["nodeName"]
        env = {e["name"]: e.get("value") for e in fresh["spec"]["containers"][0]["env"]}
        assert env["ONWARD_MANAGER"].split(",")[0] == f"{inner.address}:9601", "it is told whom to join"
        assert uid_of(world.pod("job-master-0")) == uid_of(master)
        await world.until(lambda: has(world, "Recovering", "True"), "that something is mended shows")
        assert status(world)["policy"] == "recover"
        await inner.fall_silent("job-worker-0")
        inner.join("job-worker-0", 1)
        await world.until(lambda: has(world, "Recovering", "False"), "it is mended")
        await world.until(lambda: world.state("job") == "Running", "it runs")
        assert world.restarts("job") == 0, "a recovery that keeps the job running costs nothing"
        assert "fan-1" in str(status(world)["lastIncident"])
        await world.told("job", lambda e: e.startswith("Recovering: ") and "fan-1" in e, "the beginning is told")
        await world.told("job", lambda e: e.startswith("Recovered: "), "and the end")

    tell(real, story)


def test_a_pod_whose_rank_was_killed_is_replaced_elsewhere_where_it_may_not_be_in_place(real: Access) -> None:
    async def story(world: World, inner: Inside) -> None:
        await inner.begin("job-master-0")
        await world.until(lambda: "goodput" in status(world), "the manager is heard")
        master, worker = world.pod("job-master-0"), world.pod("job-worker-0")
        inner.agents["job-worker-0"].killed = 1
        await world.until(lambda: uid_of(world.pod("job-worker-0")) not in ("", uid_of(worker)), "it is replaced")
        fresh = world.pod("job-worker-0")
        assert fresh["metadata"]["annotations"]["onward.dev/avoid-nodes"] == worker["spec"]["nodeName"]
        (wish,) = fresh["spec"]["affinity"]["nodeAffinity"].values()
        assert "NotIn" in str(wish[0]["preference"]), "another node, if there is one: nothing is wrong with this one"
        assert uid_of(world.pod("job-master-0")) == uid_of(master)
        await inner.fall_silent("job-worker-0")
        inner.join("job-worker-0", 1)
        mended = "rank 1 killed (SIGKILL): recover, "
        await world.until(lambda: mended in str(status(world).get("lastIncident")), "mended")
        await world.until(lambda: world.state("job") == "Running", "it runs")
        assert world.restarts("job") == 0

    tell(real, story)


def test_what_the_cluster_says_of_a_node_is_a_published_fault_until_it_is_over(real: Access) -> None:
    async def story(world: World, inner: Inside) -> None:
        await inner.begin("job-master-0")
        await world.until(lambda: "goodput" in status(world), "the manager is heard")
        node = str(world.pod("job-worker-0")["spec"]["nodeName"])
        notes = inner.agents["job-master-0"].notes
        for annotation, words in (("fan slow", "pre-separate"), (None, "cleared")):
            patch = {"metadata": {"annotations": {"onward.dev/fault": annotation}}}
            await world.client.patch(NODES, node, patch)
            await world.until(lambda words=words: any("node-fault" in n and words in n for n in notes), words)

    tell(real, story)


def test_the_operators_word_replaces_the_votes_of_the_dead(real: Access) -> None:
    """Of two agents the one with two votes is lost: nobody may decide, until somebody who must know says it is gone."""

    async def story(world: World, inner: Inside) -> None:
        await inner.begin("job-worker-0")
        await world.until(lambda: "goodput" in status(world), "the manager is heard")
        lost = world.pod("job-worker-0")
        world.dead.add(str(lost["spec"]["nodeName"]))  # its kubelet says nothing: the pod hangs, the job waits
        await inner.fall_silent("job-worker-0")
        await world.client.delete(PODS, "job-worker-0", world.namespace)
        await world.until(lambda: any("NoQuorum" in n for n in inner.agents["job-master-0"].notes), "nobody may decide")
        assert uid_of(world.pod("job-worker-0")) == uid_of(lost)
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid_of(lost)}}
        await world.client.delete(PODS, name_of(lost), world.namespace, options)
        await world.until(lambda: has(world, "Recovering", "True"), "now it is decided")
        await world.until(lambda: uid_of(world.pod("job-worker-0")) not in ("", uid_of(lost)), "it is replaced")
        inner.join("job-worker-0", 1)
        await world.until(lambda: has(world, "Recovering", "False"), "it is mended")
        assert world.restarts("job") == 0

    tell(real, story)


def test_the_job_goes_on_when_nobody_inside_can_be_heard(real: Access) -> None:
    async def story(world: World, inner: Inside) -> None:
        worker = world.pod("job-worker-0")
        await world.client.delete(PODS, "job-worker-0", world.namespace)
        await world.until(lambda: world.restarts("job") == 1 and world.state("job") == "Running", "it is replaced")
        assert uid_of(world.pod("job-worker-0")) != uid_of(worker)

    tell(real, story)


def test_a_pod_that_never_met_the_others_does_not_wait_for_ever(real: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the place of a lost one when the last of the others is lost too. The operator knows who was let in."""
    monkeypatch.setattr(link, "RETURN_S", 1.0)

    async def story(world: World, inner: Inside) -> None:
        await inner.begin("job-master-0")
        await world.until(lambda: "goodput" in status(world), "the manager is heard")
        for name in ("job-worker-0", "job-master-0", "manager"):
            await inner.fall_silent(name)
        await world.client.delete(PODS, "job-worker-0", world.namespace)
        await world.until(lambda: launched(world) == 1, "the first is replaced")
        late = uid_of(world.pod("job-worker-0"))
        await world.client.delete(PODS, "job-master-0", world.namespace)
        await world.until(lambda: world.state("job") == "Running" and world.restarts("job") == 1, "it begins anew")
        assert uid_of(world.pod("job-worker-0")) != late
        env = {e["name"] for e in world.pod("job-worker-0")["spec"]["containers"][0]["env"]}
        assert not {"ONWARD_MANAGER", "ONWARD_STANDBY"} & env, "nobody is there whom they could join"

    tell(real, story)


def test_when_all_who_knew_where_the_job_was_are_gone_it_begins_anew(
    real: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, and the operator is a new one: the managers of those that are left say so."""
    monkeypatch.setattr(eyes, "RETURN_S", 1.0)

    async def story(world: World, inner: Inside) -> None:
        await inner.begin("job-master-0")
        await world.until(lambda: "goodput" in status(world), "the manager is heard")
        knew = inner.agents["job-worker-0"]
        for name in ("job-worker-0", "job-master-0", "manager"):
            await inner.fall_silent(name)
        inner.fate.kill.set()
        first = {name: uid_of(world.pod(name)) for name in ("job-worker-0", "job-master-0")}
        for wave, name in enumerate(first, 1):
            await world.client.delete(PODS, name, world.namespace)
            await world.until(lambda w=wave: launched(world) == w, f"{name} is replaced")
        await world.until(lambda: world.state("job") == "Running", "all pods run")
        counted = world.restarts("job")  # a new operator was told by nobody that somebody goes on
        second = {name: uid_of(world.pod(name)) for name in first}
        inner.address = str(world.pod("job-master-0")["status"]["podIP"])
        inner.host("manager", inner.address, "job-master-0")
        inner.host("another", str(world.pod("job-worker-0")["status"]["podIP"]), "job-worker-0")
        inner.join("job-worker-0", 1, knows=knew)
        await world.until(lambda: world.restarts("job") == counted + 1, "it begins anew, and that is counted")
        await world.until(
            lambda: world.state("job") == "Running"
            and all(uid_of(world.pod(name)) not in ("", uid) for name, uid in second.items()),
            "in new pods",
        )
        assert world.restarts("job") == counted + 1
        await world.told("job", lambda e: "all who knew where it was are gone" in e, "why")
        env = {e["name"] for e in world.pod("job-worker-0")["spec"]["containers"][0]["env"]}
        assert not {"ONWARD_MANAGER", "ONWARD_STANDBY"} & env, "nobody is there whom they could join"

    tell(real, story)


def test_how_far_it_is_shows_though_nothing_happens(real: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "NUMBERS_S", 0.5)

    async def story(world: World, inner: Inside) -> None:
        await inner.begin("job-master-0")
        await world.until(lambda: status(world).get("step"), "the step is told")
        before = int(str(status(world)["step"]))
        await world.until(lambda: int(str(status(world)["step"])) > before, "and again")

    tell(real, story)


def test_an_operator_that_comes_later_hears_the_manager_though_nothing_happens(real: Access) -> None:
    async def story(world: World, inner: Inside) -> None:
        await inner.begin("job-master-0")
        await world.until(lambda: inner.server.operators == 1, "the manager is heard")
        inner.fate.kill.set()
        await world.until(lambda: inner.server.operators == 2, "and by the next operator")

    tell(real, story)


def test_a_pod_that_went_while_no_operator_was_there_costs_nothing_when_its_job_goes_on(real: Access) -> None:
    async def story(world: World, inner: Inside) -> None:
        await inner.begin("job-master-0")
        await world.until(lambda: "goodput" in status(world), "the manager is heard")
        lost = uid_of(world.pod("job-worker-0"))
        inner.fate.before = lambda request: "drop"  # type: ignore[method-assign]  # the next one sees nothing yet
        inner.fate.kill.set()
        await inner.fall_silent("job-worker-0")
        await world.client.delete(PODS, "job-worker-0", world.namespace)
        await world.until(lambda: not uid_of(world.pod("job-worker-0")), "it is gone")
        inner.fate.before = lambda request: ""  # type: ignore[method-assign]
        await world.until(lambda: uid_of(world.pod("job-worker-0")) not in ("", lost), "it is replaced")
        inner.join("job-worker-0", 1)
        await world.until(lambda: world.state("job") == "Running", "it runs")
        assert world.restarts("job") == 0

    tell(real, story)


def test_a_new_leader_is_asked_at_once_however_long_the_one_before_gave_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[int] = []

    def soon(attempt: int, *bounds: float) -> float:
        tries.append(attempt)
        return 0.001

    async def gone(uids: list[str]) -> list[str]:
        return uids

    async def go() -> None:
        way = link.Link(Memory("uid", token="t"), lambda: None, gone)
        try:
            way.update(link.Situation(leader="127.0.0.2"))
            await until_async(lambda: tries[-1:] > [20], "nobody answers")
            before = len(tries)
            way.update(link.Situation(leader="127.0.0.3"))
            await until_async(lambda: min(tries[before:], default=9) <= 2, "the wait is short again")
        finally:
            way.close()

    monkeypatch.setattr(link, "backoff_s", soon)
    monkeypatch.setattr(link, "MANAGER_PORT", free_port("127.0.0.2"))
    asyncio.run(asyncio.wait_for(go(), LIMIT_S))
