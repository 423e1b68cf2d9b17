"""kill -9 of the server under load: nothing acknowledged is lost, watches resume without a gap or learn by 410."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apiserver import ApiProcess
from waiting import until, within

BROKEN = (OSError, http.client.HTTPException, json.JSONDecodeError)
BASE = "/api/v1/namespaces/default/configmaps"
PATIENCE_S = 30.0


class Writer(threading.Thread):
    """Counts up in one object; remembers what was acknowledged."""

    def __init__(self, api: ApiProcess, name: str, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.api, self.object, self.stop = api, name, stop
        self.acknowledged = -1
        self.failures = 0

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                self._count()
            except BROKEN:
                self.failures += 1
                self.stop.wait(0.02)

    def _count(self) -> None:
        code, found = self.api.call("GET", f"{BASE}/{self.object}")
        if code == 404:
            assert self.acknowledged < 0, f"{self.object} was acknowledged at {self.acknowledged} and is gone"
            body = {"metadata": {"name": self.object}, "data": {"n": "0"}}
            if self.api.call("POST", BASE, body)[0] == 201:
                self.acknowledged = 0
            return
        n = int(found["data"]["n"])
        assert n >= self.acknowledged, f"{self.object} was acknowledged at {self.acknowledged} and is at {n}"
        while not self.stop.is_set():
            found["data"]["n"] = str(n + 1)
            code, found = self.api.call("PUT", f"{BASE}/{self.object}", found)
            assert code == 200, found
            n += 1
            self.acknowledged = n


class Watcher(threading.Thread):
    """Follows all counters through every death of the server, always resuming from the last version it saw."""

    def __init__(self, api: ApiProcess, start: str, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.api, self.version, self.stop = api, start, stop
        self.seen: dict[str, int] = {}
        self.gaps: list[str] = []
        self.resumed = 0

    def run(self) -> None:
        while not self.stop.is_set():
            with contextlib.suppress(*BROKEN):
                path = f"{BASE}?watch=true&resourceVersion={self.version}&timeoutSeconds=2"
                for event in self.api.watch(path, timeout=5):
                    self._take(event)
            self.resumed += 1
            self.stop.wait(0.02)

    def _take(self, event: dict[str, Any]) -> None:
        meta = event["object"].get("metadata", {})
        if event["type"] == "ERROR":
            self.gaps.append(f"the history did not reach back: {event}")
            self.stop.set()
            return
        if int(meta["resourceVersion"]) <= int(self.version):
            self.gaps.append(f"version {meta['resourceVersion']} came after {self.version}")
        self.version = meta["resourceVersion"]
        if not meta["name"].startswith("counter"):
            return
        n = int(event["object"]["data"]["n"])
        if n != self.seen.get(meta["name"], -1) + 1:
            self.gaps.append(f"{meta['name']} went from {self.seen.get(meta['name'])} to {n}")
        self.seen[meta["name"]] = n


def _storm(folder: Path, kills: int) -> None:
    api = ApiProcess(folder, "--history", "1000000")
    api.start()
    stop, over = threading.Event(), threading.Event()
    start = api.ok("GET", BASE)["metadata"]["resourceVersion"]
    writers = [Writer(api, f"counter{i}", stop) for i in range(3)]
    watchers = [Watcher(api, start, over) for _ in range(3)]
    try:
        for thread in [*writers, *watchers]:
            thread.start()
        for _ in range(kills):
            goal = [writer.acknowledged + 20 for writer in writers]

            def reached(goal: list[int] = goal) -> bool:
                assert all(thread.is_alive() for thread in writers), "a writer found something lost"
                return all(writer.acknowledged >= wanted for writer, wanted in zip(writers, goal, strict=True))

            until(reached, "the writers get on", PATIENCE_S)
            port = api.port
            api.kill()
            api.start()
            assert api.port == port, "clients must find the server again where it was"
        stop.set()
        for writer in writers:
            writer.join(PATIENCE_S)
        final = {f"counter{i}": int(api.ok("GET", f"{BASE}/counter{i}")["data"]["n"]) for i in range(3)}
        # The last events are on their way.
        within(PATIENCE_S, lambda: all(watcher.seen == final for watcher in watchers))
        over.set()
        for watcher in watchers:
            watcher.join(PATIENCE_S)
        assert [watcher.gaps for watcher in watchers] == [[], [], []]
        assert [watcher.seen for watcher in watchers] == [final] * 3
        assert all(writer.acknowledged <= final[writer.object] for writer in writers)
        assert sum(writer.failures for writer in writers) >= kills, "the kills did not hit the writers"
    finally:
        stop.set(), over.set()
        api.stop()


def test_kill_9_under_load_loses_nothing_acknowledged(tmp_path: Path) -> None:
    _storm(tmp_path, 3)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_kill_9_a_hundred_times(tmp_path: Path) -> None:
    _storm(tmp_path, 100)


@pytest.fixture
def short(tmp_path: Path) -> Iterator[ApiProcess]:
    process = ApiProcess(tmp_path, "--history", "50")
    process.start()
    yield process
    process.stop()


def test_a_watch_from_before_the_history_is_told_410(short: ApiProcess) -> None:
    api = short
    start = api.ok("GET", f"{BASE}?limit=1")["metadata"]["resourceVersion"]
    api.ok("POST", BASE, {"metadata": {"name": "z"}})
    page = api.ok("GET", f"{BASE}?limit=1")["metadata"]
    for n in range(80):
        patch = {"data": {"n": str(n)}}
        last = api.ok("PATCH", f"{BASE}/z", patch, "application/merge-patch+json")["metadata"]["resourceVersion"]
    for _ in range(2):  # and the same after a restart: the history is kept, and so is where it ends
        events = list(api.watch(f"{BASE}?watch=true&resourceVersion={start}&timeoutSeconds=1"))
        assert [event["type"] for event in events] == ["ERROR"]
        assert (events[0]["object"]["code"], events[0]["object"]["reason"]) == (410, "Expired")
        assert "too old resource version" in events[0]["object"]["message"]
        code, answer = api.call("GET", f"{BASE}?limit=1&continue={page['continue']}")
        assert (code, answer["reason"]) == (410, "Expired")
        code, answer = api.call("GET", f"{BASE}?resourceVersion={start}&resourceVersionMatch=Exact")
        assert code == 410
        recent = str(int(last) - 10)
        assert len(list(api.watch(f"{BASE}?watch=true&resourceVersion={recent}&timeoutSeconds=1"))) == 10
        api.kill()
        api.start()
    assert api.ok("GET", f"{BASE}/z")["data"]["n"] == "79"
