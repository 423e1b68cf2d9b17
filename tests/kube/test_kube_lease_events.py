"""Leader leases, events, work queues."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest
from aiohttp import web
from faultyapi import FaultyApi
from waiting import until_async

from onward.kube.access import Access
from onward.kube.client import ApiError, Client
from onward.kube.events import EventRecorder
from onward.kube.lease import LeaderLease, serve_by_turns
from onward.kube.objects import CONFIGMAPS, EVENTS, LEASES
from onward.kube.queue import WorkQueue, work


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_one_leader_at_a_time(real: Access) -> None:
    async def go() -> None:
        async with Client(real) as client:
            clock = Clock()
            a = LeaderLease(client, "default", "lead", "a", length_s=15, clock=clock)
            b = LeaderLease(client, "default", "lead", "b", length_s=15, clock=clock)
            assert await a._try()
            assert not await b._try()
            clock.now += 9
            assert a.held
            clock.now += 2
            assert not a.held, "it stops before others may begin"
            assert not await b._try(), "b has not yet seen it unchanged for its whole length"
            clock.now += 15
            assert await b._try()
            assert not await a._try()
            assert b.held
            lease = await client.get(LEASES, "lead", "default")
            assert lease["spec"]["holderIdentity"] == "b"
            assert lease["spec"]["leaseTransitions"] == 1
            await b.release()
            assert await a._try(), "a lease that was let go is free at once"

    asyncio.run(go())


def test_the_lease_of_one_who_is_known_to_be_dead_is_free(real: Access) -> None:
    async def go() -> None:
        async with Client(real) as client:
            dead: set[str] = set()
            a = LeaderLease(client, "default", "dead", "a")
            b = LeaderLease(client, "default", "dead", "b", is_dead=lambda holder: holder in dead)
            assert await a._try()
            assert not await b._try()
            dead.add("a")
            assert await b._try()

    asyncio.run(go())


def test_a_lease_that_cannot_be_renewed_ends_the_work(real: Access) -> None:
    async def go() -> None:
        async with FaultyApi(real) as faulty, Client(faulty.access) as client:
            lease = LeaderLease(client, "default", "lost", "a", length_s=0.6, renew_s=0.05)
            state: list[str] = []

            async def lead() -> None:
                state.append("began")
                faulty.rule = lambda r: "409" if r.method == "PUT" else ""
                try:
                    await asyncio.sleep(60)  # works until it is ended
                finally:
                    state.append("ended")

            await asyncio.wait_for(lease.run(lead), 20)
            assert state == ["began", "ended"]
            assert not lease.held
            assert "409" in faulty.fired

    asyncio.run(go())


def test_whoever_has_led_waits_for_another_turn(real: Access) -> None:
    """The lease is lost, the next turn fails as it begins, the one after that is led until SIGTERM."""

    async def go() -> None:
        async with FaultyApi(real) as faulty, Client(faulty.access) as client:
            lease = LeaderLease(client, "default", "turns", length_s=0.6, renew_s=0.05)
            turns: list[int] = []

            async def lead() -> None:
                turns.append(len(turns) + 1)
                if turns[-1] == 1:
                    faulty.rule = lambda r: "409" if r.method == "PUT" else ""
                elif turns[-1] == 2:
                    raise ApiError(403, "Forbidden", "rights are not known yet")
                else:
                    os.kill(os.getpid(), signal.SIGTERM)
                try:
                    await asyncio.sleep(60)
                finally:
                    faulty.rule = lambda r: ""

            await asyncio.wait_for(serve_by_turns(lease, lead, "tester"), 20)
            assert turns == [1, 2, 3]
            left = await client.get(LEASES, "turns", "default")
            assert left["spec"]["holderIdentity"] == "", "it is given back"

    asyncio.run(go())


def test_one_that_cannot_begin_ends_with_the_reason(real: Access) -> None:
    async def go() -> None:
        async with Client(real) as client:

            async def lead() -> None:
                raise ApiError(403, "Forbidden", "no rights at all")

            with pytest.raises(ApiError, match="no rights at all"):
                await serve_by_turns(LeaderLease(client, "default", "never", renew_s=0.05), lead, "tester")

    asyncio.run(go())


def test_the_same_event_counts_up(real: Access) -> None:
    async def go() -> None:
        async with FaultyApi(real) as faulty, Client(faulty.access) as client:
            fails = [2]

            def rule(request: web.Request) -> str:
                if request.method == "POST" and "events" in request.path and fails[0]:
                    fails[0] -= 1
                    return "500"
                return ""

            faulty.rule = rule
            made = await client.create(CONFIGMAPS, {"metadata": {"name": "about"}, "data": {}}, "default")
            recorder = EventRecorder(client, "tester", "here")
            task = asyncio.ensure_future(recorder.run())
            for _ in range(5):
                recorder.record(made, CONFIGMAPS, "Warning", "Again", "the same words")
                await recorder.flush()
            recorder.record(made, CONFIGMAPS, "Normal", "Other", "other words")
            await recorder.flush()
            for i in range(120):
                recorder.record(made, CONFIGMAPS, "Normal", "Diary", f"words {i}")
            await recorder.flush()
            listed = await client.list(EVENTS, "default", fieldSelector="involvedObject.name=about")
            found = {e["reason"]: e for e in listed["items"] if e["reason"] != "Diary"}
            assert found["Again"]["count"] == 5
            assert found["Again"]["source"] == {"component": "tester", "host": "here"}
            assert found["Other"]["count"] == 1
            assert 0 < sum(e["reason"] == "Diary" for e in listed["items"]) < 70, "nobody writes a diary"
            assert recorder.dropped > 30
            assert faulty.fired == ["500", "500"]
            task.cancel()

    asyncio.run(go())


def test_a_queue_works_on_each_key_once_and_again_when_it_changed() -> None:
    async def go() -> None:
        queue, log = WorkQueue(base_s=0.001), []
        busy: set[str] = set()
        failures = [3]

        async def handle(key: str) -> None:
            assert key not in busy, "never twice at the same time"
            busy.add(key)
            log.append(key)
            if key == "b" and log.count("b") == 1:
                queue.add("b")  # it changed while it is worked on
                queue.add("b")
            await asyncio.sleep(0)  # others have their turn
            busy.discard(key)
            if key == "bad" and failures[0]:
                failures[0] -= 1
                raise ApiError(500, "", "on purpose")

        for key in ("a", "b", "a", "a", "bad"):
            queue.add(key)
        task = asyncio.ensure_future(work(queue, handle, workers=3))
        await until_async(lambda: log.count("bad") == 4 and log.count("b") == 2, "all is worked on")
        assert sorted(log) == ["a", "b", "b", "bad", "bad", "bad", "bad"]
        queue.add_after("late", 0.02)
        queue.add_after("late", 60)
        await until_async(lambda: "late" in log, "the earlier delay is over")
        assert log.count("late") == 1, "the earliest of several delays counts"
        assert queue.failures("bad") == 0, "it went well in the end"
        task.cancel()

    asyncio.run(go())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "cannot read kubeconfig"),
        ("current-context: x", "context 'x' does not exist"),
        ("{current-context: x, contexts: [{name: x, context: {cluster: y}}]}", "which has no server"),
        ("- 1", "is not a mapping"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used(text: str, problem: str, tmp_path: Any) -> None:
    from onward.kube.access import AccessError, load_access

    (tmp_path / "config").write_text(text)
    with pytest.raises(AccessError, match=problem):
        load_access(tmp_path / "config")
