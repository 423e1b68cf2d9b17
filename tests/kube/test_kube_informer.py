"""Client and informer while connections break, replies get lost and versions expire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from faultyapi import FaultyApi
from waiting import until_async

from onward.kube.access import Access
from onward.kube.client import ApiError, Client, Unreachable
from onward.kube.informer import Informer
from onward.kube.objects import CONFIGMAPS, PODS, Resource, name_of

Story = Callable[[FaultyApi, Client, Client], Coroutine[Any, Any, None]]


def tell(real: Access, story: Story) -> None:
    """Run a story with a client through the faulty proxy, and one that is never disturbed."""

    async def go() -> None:
        async with FaultyApi(real) as faulty, Client(faulty.access) as client, Client(real) as calm:
            await asyncio.wait_for(story(faulty, client, calm), 60)

    asyncio.run(go())


def once(kind: str, good: Callable[[web.Request], bool], times: int = 1) -> Callable[[web.Request], str]:
    left = [times]

    def rule(request: web.Request) -> str:
        if left[0] and good(request):
            left[0] -= 1
            return kind
        return ""

    return rule


def is_watch(request: web.Request) -> bool:
    return request.query.get("watch") == "true"


def watching(request: str) -> bool:
    return "watch=true" in request


def config(name: str, story: str = "") -> dict[str, Any]:
    metadata = {"name": name, "labels": {"story": story}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"v": "x"}}


class Seen:
    """What an informer tells, in the order of telling."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def __call__(self, old: Any, new: Any) -> None:
        word = "gone" if new is None else "new" if old is None else "changed"
        self.told.append((word, name_of(new or old)))

    async def until(self, word: str, name: str) -> None:
        await until_async(lambda: (word, name) in self.told, lambda: f"{word} {name}, among {self.told}")


@asynccontextmanager
async def informed(
    client: Client, resource: Resource = CONFIGMAPS, story: str = ""
) -> AsyncIterator[tuple[Informer, Seen]]:
    """An informer that has listed what is there, or only what has the label of a story."""
    seen, only = Seen(), {"labelSelector": f"story={story}"} if story else {}
    informer = Informer(client, resource, "default", on_change=seen, **only)
    task = asyncio.ensure_future(informer.run())
    try:
        await informer.synced()
        yield informer, seen
    finally:
        task.cancel()


@pytest.mark.parametrize("kind", ["500", "503", "429", "drop", "lost"])
def test_reads_are_repeated(real: Access, kind: str) -> None:
    async def story(faulty: FaultyApi, client: Client, calm: Client) -> None:
        faulty.rule = once(kind, lambda r: r.method == "GET", times=2)
        found = await client.list(CONFIGMAPS, "default")
        assert found["kind"] == "ConfigMapList"
        assert faulty.fired == [kind, kind]

    tell(real, story)


def test_a_write_is_repeated_only_when_it_was_not_done(real: Access) -> None:
    async def story(faulty: FaultyApi, client: Client, calm: Client) -> None:
        faulty.rule = once("429", lambda r: r.method == "POST")
        await client.create(CONFIGMAPS, config("write-429"), "default")
        faulty.rule = once("500", lambda r: r.method == "POST")
        with pytest.raises(ApiError) as refused:
            await client.create(CONFIGMAPS, config("write-500"), "default")
        assert refused.value.code == 500
        faulty.rule = once("lost", lambda r: r.method == "POST")
        with pytest.raises(Unreachable):
            await client.create(CONFIGMAPS, config("write-lost"), "default")
        faulty.rule = lambda r: ""
        names = {name_of(o) for o in (await calm.list(CONFIGMAPS, "default"))["items"]}
        assert {"write-429", "write-lost"} <= names
        assert "write-500" not in names
        with pytest.raises(ApiError) as conflict:
            await client.create(CONFIGMAPS, config("write-lost"), "default")
        assert (conflict.value.code, conflict.value.reason) == (409, "AlreadyExists")
        assert faulty.fired == ["429", "500", "lost"]

    tell(real, story)


def test_a_watch_that_breaks_is_taken_up_without_a_new_list(real: Access) -> None:
    async def story(faulty: FaultyApi, client: Client, calm: Client) -> None:
        async with informed(client, story="cut") as (informer, seen):
            await calm.create(CONFIGMAPS, config("cut-1", "cut"), "default")
            await seen.until("new", "cut-1")
            faulty.rule = once("drop", is_watch, times=2)
            faulty.cut_watches()
            await calm.patch(CONFIGMAPS, "cut-1", {"data": {"v": "while cut"}}, "default")
            await seen.until("changed", "cut-1")
            found = informer.get("default/cut-1")
            assert found is not None
            assert found["data"]["v"] == "while cut"
            assert faulty.fired == ["drop", "drop"]
            assert informer.lists == 1

    tell(real, story)


def test_a_silent_server_is_not_a_broken_one(real: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    """It owes nobody a bookmark: the watch is taken up anew, what is known stays known, and nothing is read again."""
    monkeypatch.setattr("onward.kube.client.QUIET_S", 0.2)

    async def story(faulty: FaultyApi, client: Client, calm: Client) -> None:
        async with informed(client, story="silent") as (informer, seen):
            await until_async(lambda: sum(map(watching, faulty.requests)) >= 3, "the watch is taken up twice")
            assert informer.healthy
            await calm.create(CONFIGMAPS, config("silent-1", "silent"), "default")
            await seen.until("new", "silent-1")
            assert informer.lists == 1

    tell(real, story)


def test_an_answer_that_comes_after_the_end_of_its_object_leaves_nothing(real: Access) -> None:
    async def story(faulty: FaultyApi, client: Client, calm: Client) -> None:
        async with informed(client) as (informer, seen):
            answers = [await calm.create(CONFIGMAPS, config(name), "default") for name in ("brief", "lasting")]
            await calm.delete(CONFIGMAPS, "brief", "default")
            await seen.until("gone", "brief")
            for answer in answers:
                informer.learn(answer)
            assert informer.get("default/brief") is None
            assert informer.get("default/lasting") is not None

    tell(real, story)


def test_the_answer_to_a_deletion_that_comes_after_the_end_leaves_nothing(real: Access) -> None:
    """A pod that runs nowhere is gone at once, and the answer has the very version of its end."""

    async def story(faulty: FaultyApi, client: Client, calm: Client) -> None:
        async with informed(client, PODS) as (informer, seen):
            spec = {"containers": [{"name": "c", "image": "x"}]}
            await calm.create(PODS, {"metadata": {"name": "nowhere"}, "spec": spec}, "default")
            answer = await calm.delete(PODS, "nowhere", "default")
            await seen.until("gone", "nowhere")
            informer.learn(answer)
            assert answer["kind"] == "Pod"
            assert informer.get("default/nowhere") is None

    tell(real, story)


async def watched(faulty: FaultyApi) -> None:
    await until_async(lambda: any("watch=true" in r for r in faulty.requests), "it watches")


def test_an_answer_is_taken_in_before_the_watch_tells_of_it(real: Access) -> None:
    async def story(faulty: FaultyApi, client: Client, calm: Client) -> None:
        async with informed(client) as (informer, _):
            await watched(faulty)
            faulty.rule = lambda r: "drop" if is_watch(r) else ""
            faulty.cut_watches()
            informer.learn(await calm.create(CONFIGMAPS, config("ahead"), "default"))
            assert informer.get("default/ahead") is not None

    tell(real, story)


def test_410_lists_again_and_what_vanished_is_told(real: Access) -> None:
    async def story(faulty: FaultyApi, client: Client, calm: Client) -> None:
        for name in ("old-1", "old-2"):
            await calm.create(CONFIGMAPS, config(name, "old"), "default")
        deleted = asyncio.Event()

        def rule(request: web.Request) -> str:
            if not is_watch(request):
                return ""
            return "" if "expired" in faulty.fired else "expired" if deleted.is_set() else "drop"

        async with informed(client, story="old") as (informer, seen):
            await watched(faulty)
            faulty.rule = rule
            faulty.cut_watches()
            await calm.delete(CONFIGMAPS, "old-1", "default")
            deleted.set()
            await seen.until("gone", "old-1")
            assert [name for word, name in seen.told if word == "gone"] == ["old-1"], "the one that vanished, once"
            assert informer.lists == 2
            assert [name_of(o) for o in informer] == ["old-2"]

    tell(real, story)


def test_a_list_in_pages(real: Access) -> None:
    async def story(faulty: FaultyApi, client: Client, calm: Client) -> None:
        for i in range(5):
            await calm.create(CONFIGMAPS, config(f"page-{i}", "page"), "default")
        found = await client.list(CONFIGMAPS, "default", limit="2", labelSelector="story=page")
        assert [name_of(o) for o in found["items"]] == [f"page-{i}" for i in range(5)]
        assert sum("limit=2" in r for r in faulty.requests) == 3

    tell(real, story)


def test_nobody_there() -> None:
    async def go() -> None:
        async with Client(Access(server="http://127.0.0.1:9")) as client:
            with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
                await client._once("GET", "/api", None, "", {}, 1.0, "application/json")

    asyncio.run(go())
