"""Logs and exec through the API server, with a small agent of our own in the node's place."""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import threading
from collections.abc import Callable, Iterator

import aiohttp
import pytest
from aiohttp import web
from apiserver import ApiProcess, pod

Kubectl = Callable[..., subprocess.CompletedProcess[str]]


class Agent:
    """Answers as a node's agent does: logs in chunks, exec that echoes and ends with a code."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.asked: list[str] = []
        self.port = 0
        self._ready, self._over = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(20)

    def stop(self) -> None:
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(20)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        app = web.Application()
        app.router.add_get("/containerLogs/{ns}/{pod}/{container}", self._logs)
        app.router.add_get("/exec/{ns}/{pod}/{container}", self._exec)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        self._ready.set()
        await self._over.wait()
        await runner.cleanup()

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == f"Bearer {self.token}"
        self.asked.append(request.path_qs)
        if request.match_info["container"] == "waiting":
            return web.Response(status=400, text='container "waiting" in pod is waiting to start: ContainerCreating')
        response = web.StreamResponse()
        await response.prepare(request)
        for n in range(3):
            await response.write(f"line {n}\n".encode())
        if "follow" in request.query:
            self._die(request)
        return response

    def _die(self, request: web.Request) -> None:
        """What the other side sees of a kill -9."""
        assert request.transport is not None
        request.transport.abort()

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == f"Bearer {self.token}"
        self.asked.append(request.path_qs)
        if request.match_info["container"] == "waiting":
            raise web.HTTPBadRequest(text="it does not run")
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io", "v4.channel.k8s.io"))
        await socket.prepare(request)
        words = " ".join(request.query.getall("command"))
        await socket.send_bytes(b"\x01" + f"{socket.ws_protocol}: {words}\n".encode())
        await socket.send_bytes(b"\x02" + b"a word of warning\n")
        if words.startswith("die"):
            self._die(request)
            return socket
        if words.startswith("leave"):
            await socket.close()
            return socket
        details = {"causes": [{"reason": "ExitCode", "message": "3"}]}
        status = {"status": "Failure", "reason": "NonZeroExitCode", "message": "exit 3", "details": details}
        await socket.send_bytes(b"\x03" + json.dumps(status).encode())
        await socket.close()
        return socket


@pytest.fixture
def agent(api: ApiProcess, namespace: str) -> Iterator[Agent]:
    made = Agent((api.state / "node.token").read_text().strip())
    made.start()
    notes = {"onward.dev/kubelet": f"http://127.0.0.1:{made.port}"}
    api.ok("POST", "/api/v1/nodes", {"metadata": {"name": "proxied", "annotations": notes}})
    body = pod("p", nodeName="proxied")
    body["spec"]["containers"].append({"name": "waiting", "image": "i"})
    body["metadata"]["annotations"] = {"kubectl.kubernetes.io/default-container": "main"}
    api.ok("POST", f"/api/v1/namespaces/{namespace}/pods", body)
    yield made
    api.ok("DELETE", f"/api/v1/namespaces/{namespace}/pods/p", {"gracePeriodSeconds": 0})
    api.ok("DELETE", "/api/v1/nodes/proxied")
    made.stop()


def test_logs_come_through_with_their_options(api: ApiProcess, agent: Agent, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods/p/log"
    code, text, _ = api.raw("GET", f"{path}?tailLines=3&timestamps=true")
    assert (code, text) == (200, b"line 0\nline 1\nline 2\n")
    assert agent.asked[-1].startswith(f"/containerLogs/{namespace}/p/main?tailLines=3&timestamps=true")
    code, answer = api.call("GET", f"{path}?container=waiting")
    assert code == 400
    assert "waiting to start: ContainerCreating" in answer["message"]
    assert api.call("GET", f"{path}?tailLines=-1")[0] == 422


def test_kubectl_logs_and_exec(api: ApiProcess, agent: Agent, namespace: str, kubectl: Kubectl) -> None:
    assert kubectl("-n", namespace, "logs", "p", "-c", "main").stdout == "line 0\nline 1\nline 2\n"
    done = kubectl("-n", namespace, "exec", "p", "-c", "main", "--", "say", "hello world", check=False)
    assert done.stdout == "v5.channel.k8s.io: say hello world\n"
    assert "a word of warning" in done.stderr
    assert done.returncode == 3


def test_a_node_that_is_gone_is_said(api: ApiProcess, agent: Agent, namespace: str) -> None:
    agent.stop()
    code, answer = api.call("GET", f"/api/v1/namespaces/{namespace}/pods/p/log")
    assert code == 503
    assert "the agent of node proxied cannot be reached" in answer["message"]


def test_kubectl_shows_why_exec_was_refused(agent: Agent, namespace: str, kubectl: Kubectl) -> None:
    done = kubectl("-n", namespace, "exec", "p", "-c", "waiting", "--", "ls", check=False)
    assert "container waiting of pod p does not run" in done.stderr
    agent.stop()
    done = kubectl("-n", namespace, "exec", "p", "-c", "main", "--", "ls", check=False)
    assert "the agent of node proxied cannot be reached" in done.stderr


@pytest.mark.parametrize("how", ["die", "leave"])
def test_exec_whose_agent_goes_has_not_succeeded(agent: Agent, namespace: str, kubectl: Kubectl, how: str) -> None:
    done = kubectl("-n", namespace, "exec", "p", "-c", "main", "--", how, check=False)
    assert done.returncode == 1
    assert "the agent of node proxied was lost during exec; how that ended is not known" in done.stderr


def test_logs_whose_agent_dies_are_cut(api: ApiProcess, agent: Agent, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods/p/log?follow=true"
    with pytest.raises(http.client.IncompleteRead) as cut:
        api.raw("GET", path)
    assert cut.value.partial in (b"", b"line 0\nline 1\nline 2\n")


def test_exec_without_a_websocket_is_501(api: ApiProcess, agent: Agent, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods/p/exec"
    code, answer = api.call("POST", f"{path}?command=ls", {})
    assert code == 501
    assert "kubectl 1.31 or newer" in answer["message"]
    assert api.call("POST", path, {})[0] == 400


def test_a_broken_handshake_runs_nothing(api: ApiProcess, agent: Agent, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods/p/exec?command=x&stdout=true&container=main"
    broken = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "x"}
    code, answer, _ = api.raw("GET", path, None, broken)
    assert code == 400, answer
    assert b"no handshake of a WebSocket" in answer
    assert not agent.asked


def test_v4_clients(api: ApiProcess, agent: Agent, namespace: str) -> None:
    async def ask() -> tuple[str | None, bytes]:
        headers = {"Authorization": f"Bearer {api.token}"}
        url = f"https://127.0.0.1:{api.port}/api/v1/namespaces/{namespace}/pods/p/exec?command=x&stdout=true"
        timeout = aiohttp.ClientTimeout(total=20)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            protocols = ("v4.channel.k8s.io",)
            async with session.ws_connect(url, protocols=protocols, headers=headers, ssl=api.context) as socket:
                return socket.protocol, await socket.receive_bytes()

    path = f"/api/v1/namespaces/{namespace}/pods/p/exec?command=x"
    code, answer, _ = api.raw("GET", path, None, {"Upgrade": "websocket"})
    assert code == 400
    assert b"you must specify at least 1 of stdin, stdout, stderr" in answer
    assert asyncio.run(ask()) == ("v4.channel.k8s.io", b"\x01v4.channel.k8s.io: x\n")
