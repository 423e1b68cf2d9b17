"""A login plugin gives tokens that do not last: a client that runs for days asks it again."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import yaml
from aiohttp import web

from onward.kube.access import load_access
from onward.kube.client import Client
from onward.kube.informer import Informer
from onward.kube.objects import PODS, name_of

COUNTS = """
import json, pathlib, sys
file = pathlib.Path(sys.argv[1])
number = int(file.read_text()) + 1 if file.exists() else 1
file.write_text(str(number))
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
                  "status": {"token": f"token-{number}"}}))
"""
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n", "resourceVersion": "2"}}


class Server:
    """Knows one token at a time."""

    def __init__(self) -> None:
        self.good = "token-1"
        self.refused = 0
        self.over = asyncio.Event()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {self.good}":
            self.refused += 1
            return web.json_response({"kind": "Status", "code": 401, "message": "Unauthorized"}, status=401)
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        response = web.StreamResponse()
        await response.prepare(request)
        if self.good == "token-3":
            await response.write(json.dumps({"type": "ADDED", "object": POD}).encode() + b"\n")
            await self.over.wait()
        return response


def test_a_token_that_is_out_of_date_is_asked_for_anew(tmp_path: Path) -> None:
    plugin = {"command": sys.executable, "args": ["-c", COUNTS, str(tmp_path / "count")]}

    async def go() -> None:
        server = Server()
        runner = web.ServerRunner(web.Server(server))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        (tmp_path / "config").write_text(yaml.safe_dump({
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "u", "user": {"exec": plugin}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }))  # fmt: skip
        async with Client(load_access(tmp_path / "config")) as client:
            server.good = "token-2"
            answers = await asyncio.gather(*(client.list(PODS) for _ in range(8)))
            assert (len(answers), (tmp_path / "count").read_text()) == (8, "2"), "one asks for all"
            came = asyncio.Event()
            pods = Informer(client, PODS, on_change=lambda old, new: came.set())
            task = asyncio.ensure_future(pods.run())
            await pods.synced(30.0)
            server.good = "token-3"
            await asyncio.wait_for(came.wait(), 30.0)
            assert ([name_of(pod) for pod in pods], pods.lists) == (["p"], 1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        server.over.set()
        assert server.refused >= 2
        await runner.cleanup()

    asyncio.run(asyncio.wait_for(go(), 60.0))
