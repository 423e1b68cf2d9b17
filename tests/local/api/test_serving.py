"""`serve(settings)` inside a process of one's own: bookmarks, watchers that cannot keep up, and a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from onward.errors import UsageError
from onward.local.api.serving import Running, serve
from onward.local.api.settings import Settings

MAPS = "/api/v1/namespaces/default/configmaps"
PATIENCE_S = 30.0


@contextlib.asynccontextmanager
async def client(running: Running, state: Path) -> AsyncIterator[aiohttp.ClientSession]:
    tls = ssl.create_default_context(cafile=str(state / "ca.crt"))
    connector = aiohttp.TCPConnector(ssl=tls, limit=0)
    headers = {"Authorization": f"Bearer {running.token}"}
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(running.url, connector=connector, headers=headers, timeout=timeout) as session:
        yield session


async def _events(session: aiohttp.ClientSession, path: str, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async with session.get(path) as answer:
        assert answer.status == 200
        async for line in answer.content:
            found.append(json.loads(line))
            if len(found) == count:
                return found
    return found


def test_a_quiet_watch_is_told_the_version(tmp_path: Path) -> None:
    async def story() -> None:
        async with serve(Settings(tmp_path, bookmark_s=0.1)) as running, client(running, tmp_path) as session:
            async with session.post("/api/v1/nodes", json={"metadata": {"name": "n"}}) as answer:
                version = (await answer.json())["metadata"]["resourceVersion"]
            path = "/api/v1/pods?watch=true&resourceVersion=1&allowWatchBookmarks=true"
            marks = await _events(session, path, 2)
            assert [mark["type"] for mark in marks] == ["BOOKMARK", "BOOKMARK"]
            assert marks[0]["object"]["kind"] == "Pod"
            assert int(marks[0]["object"]["metadata"]["resourceVersion"]) >= int(version)

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))


def test_a_watcher_that_does_not_read_is_cut_off_and_resumes(tmp_path: Path) -> None:
    """The server's memory is not the client's buffer; what was missed is still in the history."""
    changes = 150

    async def story() -> None:
        async with serve(Settings(tmp_path, watch_queue=20)) as running, client(running, tmp_path) as session:
            async with session.post(MAPS, json={"metadata": {"name": "m"}}) as answer:
                version = int((await answer.json())["metadata"]["resourceVersion"])
            path = MAPS + "?watch=true&fieldSelector=metadata.name%3Dm&resourceVersion={}"
            async with session.get(path.format(version)) as slow:
                for n in range(changes):
                    body = {"data": {"n": str(n), "ballast": "x" * 100_000}}
                    kind = {"Content-Type": "application/merge-patch+json"}
                    async with session.patch(f"{MAPS}/m", data=json.dumps(body), headers=kind) as answer:
                        assert answer.status == 200
                seen = []
                with contextlib.suppress(aiohttp.ClientError, ValueError):
                    buffer = await slow.content.read()
                    seen = [json.loads(line) for line in buffer.splitlines()]
            assert len(seen) < changes, "it was not cut off"
            last = int(seen[-1]["object"]["metadata"]["resourceVersion"]) if seen else version
            path = f"{path.format(last)}&timeoutSeconds=1"
            async with session.get(path) as again:
                rest = [json.loads(line) for line in (await again.content.read()).splitlines()]
            assert [int(event["object"]["data"]["n"]) for event in [*seen, *rest]] == list(range(changes))

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S * 2))


def test_an_end_leaves_nothing_behind(tmp_path: Path) -> None:
    before = threading.active_count()

    async def story() -> None:
        for _ in range(2):
            async with serve(Settings(tmp_path)) as running, client(running, tmp_path) as session:
                async with session.get("/api/v1/namespaces") as answer:
                    assert answer.status == 200
                with pytest.raises(UsageError, match="another API server already runs"):
                    await serve(Settings(tmp_path)).__aenter__()
        tasks = [task for task in asyncio.all_tasks() if task.get_name().startswith("onward-")]
        assert not tasks

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
    assert [thread for thread in threading.enumerate() if thread.name == "onward-store"] == []
    assert threading.active_count() <= before + 1
