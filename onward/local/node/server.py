"""What the API server asks a node for: logs, and a way into a running container. HTTP on loopback, with a token."""

from __future__ import annotations

import hmac
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from aiohttp import web

from onward.kube.objects import read_stamp
from onward.local.daemon import LONGEST_LINE
from onward.local.node import attach, execute, logs, portforward
from onward.local.node.agent import Agent
from onward.local.node.sandbox import Local
from onward.local.unreadable import server_log


class NodeServer:
    """Routes under one agent."""

    def __init__(self, agent: Agent, token_file: Path) -> None:
        self._agent, self._token_file = agent, token_file

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._let_in])
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        app.router.add_get("/exec/{namespace}/{pod}/{container}", self._exec)
        app.router.add_post("/exec/{namespace}/{pod}/{container}", self._exec)
        app.router.add_get("/attach/{namespace}/{pod}/{container}", self._attach)
        app.router.add_get("/portforward/{namespace}/{pod}", self._port_forward)
        return app

    @web.middleware
    async def _let_in(self, request: web.Request, handler: object) -> web.StreamResponse:
        assert callable(handler)
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").encode(errors="replace")
        try:
            token = self._token_file.read_text().strip().encode()
        except OSError:
            token = b""
        if not token or not hmac.compare_digest(given, token):
            return web.Response(status=401, text="the node agent wants the token of the state directory\n")
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    def _find(self, request: web.Request) -> Local:
        key = f"{request.match_info['namespace']}/{request.match_info['pod']}"
        uid = request.query.get("uid")
        found = [p for p in self._agent.locals.values() if p.key == key and uid in (None, p.uid)]
        if not found:
            raise web.HTTPNotFound(text=f"pod {key!a} does not run on this node\n")
        return max(found, key=lambda p: p.started_at)

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        pod, name, query = self._find(request), request.match_info["container"], request.query
        try:
            wanted = _wanted(query)
        except ValueError as e:
            raise web.HTTPBadRequest(text=f"{e}\n") from e
        previous = query.get("previous") in ("true", "1")
        paths = logs.files(pod.place, name, previous)
        if not paths:
            what = "previous terminated container" if previous else "container"
            where = f'{what} "{name}" in pod "{request.match_info["pod"]}"'
            text = f"{where} not found" if previous else f"{where} is waiting to start: {_waits_for(pod, name)}"
            raise web.HTTPBadRequest(text=text + "\n")
        answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
        answer.enable_chunked_encoding()
        await answer.prepare(request)

        def running() -> bool:
            return not previous and _runs(pod, name) and pod.uid in self._agent.locals

        async for chunk in logs.read(paths, wanted, running):
            await answer.write(chunk)
        await answer.write_eof()
        return answer

    def _running(self, request: web.Request) -> tuple[Local, str, int]:
        """The pod, the name of a container that runs, and its pid."""
        pod, name = self._find(request), request.match_info["container"]
        known = (pod.facts.get("containers") or {}).get(name)
        if known is None or not known.get("pid"):
            raise web.HTTPBadRequest(text=f"container {name} of {pod.key} does not run\n")
        return pod, name, int(known["pid"])

    async def _attach(self, request: web.Request) -> web.StreamResponse:
        pod, name, _ = self._running(request)
        connection = None
        try:
            connection = await self._agent.connect(pod)
            takes_input = await attach.begin(connection, name, request.query)
        except (OSError, ValueError, attach.NotRunning) as e:
            if connection is not None:
                connection[1].close()
            raise web.HTTPBadRequest(text=f"container {name} of {pod.key} does not run\n") from e
        return await attach.serve(request, connection, name, takes_input)

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        pod, name, pid = self._running(request)
        command = request.query.getall("command", [])
        if not command:
            raise web.HTTPBadRequest(text="you must specify at least 1 command for the container\n")
        return await execute.serve(request, pod.place, name, pid, command)

    async def _port_forward(self, request: web.Request) -> web.StreamResponse:
        pod = self._find(request)
        pids = [known["pid"] for known in (pod.facts.get("containers") or {}).values() if known.get("pid")]
        try:
            ways = portforward.Pod(pod.key, pod.address, int(pids[0]))
        except (IndexError, OSError) as e:
            raise web.HTTPBadRequest(text=f"{pod.key} does not run\n") from e
        return await portforward.serve(request, ways)


def _runs(pod: Local, container: str) -> bool:
    """It runs, or will run again."""
    known = (pod.facts.get("containers") or {}).get(container)
    return known is not None and known["state"] == "running" and not pod.done


def _wanted(query: Mapping[str, str]) -> logs.Wanted:
    get = query.get
    since = None
    if get("sinceTime"):
        since = read_stamp(get("sinceTime"))
    if get("sinceSeconds"):
        since = time.time() - int(query["sinceSeconds"])
    return logs.Wanted(
        follow=get("follow") in ("true", "1"),
        tail=int(query["tailLines"]) if get("tailLines") else None,
        since=since,
        timestamps=get("timestamps") in ("true", "1"),
        limit_bytes=int(query["limitBytes"]) if get("limitBytes") else None,
        stream={"Stdout": "stdout", "Stderr": "stderr"}.get(get("stream") or "", ""),
    )


async def listen(agent: Agent, token_file: Path, sock: socket.socket) -> web.AppRunner:
    runner = web.AppRunner(
        NodeServer(agent, token_file).application(),
        access_log=None,
        logger=server_log("local.node"),
        handler_cancellation=True,
        max_line_size=LONGEST_LINE,
    )
    await runner.setup()
    site = web.SockSite(runner, sock)
    await site.start()
    return runner


def _waits_for(pod: Local, container: str) -> str:
    known = (pod.facts.get("containers") or {}).get(container) or {}
    return str(known.get("reason") or "ContainerCreating")
