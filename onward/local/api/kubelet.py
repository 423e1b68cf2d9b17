"""Log, exec, attach and portforward: handed on to the agent of the pod's node.

The node says in its annotation `onward.dev/kubelet` where its agent listens; both hold the secret in STATE/node.token.
Logs are streamed as they come; the others are WebSockets whose messages are passed on untouched, whatever protocol
client and agent agree on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web
from multidict import MultiDict

from onward.local.api import certs
from onward.local.api.request import Target, number
from onward.local.api.rest import Api
from onward.local.api.status import ApiError, bad_request, internal, not_found, not_supported
from onward.local.api.store import encode

Json = dict[str, Any]
ANNOTATION = "onward.dev/kubelet"
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
CONNECT_S = 10.0
REMEMBERED_S = 10.0
STATUS_CHANNEL = b"\x03"  # of exec and attach
LOG_OPTIONS = ("follow", "previous", "tailLines", "sinceSeconds", "sinceTime", "timestamps", "limitBytes", "stream")


def container_of(pod: Json, asked: str) -> str:
    """The container a request means."""
    name, spec = pod["metadata"]["name"], pod["spec"]
    regular: list[str] = [each["name"] for each in spec.get("containers", ())]
    every: list[str] = [*regular, *[each["name"] for each in spec.get("initContainers", ())]]
    if not asked:
        chosen: str = (pod["metadata"].get("annotations") or {}).get(DEFAULT_CONTAINER, "")
        if chosen in every:
            return chosen
        if len(regular) == 1:
            return regular[0]
        init = [each["name"] for each in spec.get("initContainers", ())]
        more = f" or one of the init containers: [{' '.join(init)}]" if init else ""
        raise bad_request(
            f"a container name must be specified for pod {name}, choose one of: [{' '.join(regular)}]{more}"
        )
    if asked not in every:
        raise bad_request(f"container {asked[:100]} is not valid for pod {name}")
    return asked


def agent_of(api: Api, pod: Json) -> str:
    """The URL of the agent of the pod's node."""
    node = pod["spec"].get("nodeName")
    if not node:
        raise bad_request(f"pod {pod['metadata']['name']} does not have a host assigned")
    found = api.store.get(("nodes", "", node))
    if found is None:
        raise not_found("", "nodes", node)
    url = (found.body["metadata"].get("annotations") or {}).get(ANNOTATION)
    if not url:
        text = f"node {node} has no agent (annotation {ANNOTATION}); logs and exec need the node to run"
        raise ApiError(503, "ServiceUnavailable", text)
    return str(url).rstrip("/")


def _headers(api: Api) -> dict[str, str]:
    return {"Authorization": f"Bearer {certs.token(api.settings.state, 'node.token')}"}


def _check_log_options(query: Mapping[str, str]) -> None:
    for name in ("tailLines", "sinceSeconds", "limitBytes"):
        if name in query and number(query, name) < (1 if name != "tailLines" else 0):
            least = "greater than 0" if name != "tailLines" else "greater than or equal to 0"
            raise ApiError(
                422, "Invalid",
                f'PodLogOptions "" is invalid: {name}: Invalid value: {query[name][:60]}: must be {least}',
            )  # fmt: skip


async def log(api: Api, request: web.Request, target: Target) -> web.StreamResponse:
    """GET pods/NAME/log: the agent's answer, chunk by chunk."""
    _check_log_options(request.query)
    pod = api.get(target).body
    container = container_of(pod, request.query.get("container", ""))
    if not pod["spec"].get("nodeName"):
        return web.Response(status=204)  # nothing has run yet
    url = f"{agent_of(api, pod)}/containerLogs/{target.namespace}/{target.name}/{container}"
    query = {name: request.query[name] for name in LOG_OPTIONS if name in request.query}
    query["uid"] = pod["metadata"]["uid"]
    timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S)
    async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:
        try:
            async with session.get(url, params=query, headers=_headers(api)) as upstream:
                if upstream.status != 200:
                    raise await _refusal(upstream)
                response = web.StreamResponse(headers={"Content-Type": "text/plain"})
                await response.prepare(request)
                try:
                    async for chunk in upstream.content.iter_any():
                        await response.write(chunk)
                except aiohttp.ClientPayloadError:  # the agent died: a clean end would say that this was all
                    raise _hang_up(request) from None
                await response.write_eof()
                return response
        except (aiohttp.ClientConnectionError, asyncio.TimeoutError) as error:
            if request.transport is None or request.transport.is_closing():
                raise
            raise _unreachable(pod["spec"]["nodeName"], error) from None


def _hang_up(request: web.Request) -> ConnectionError:
    """Cut the connection in the middle of an answer: nothing else can be said any more."""
    if request.transport is not None:
        request.transport.abort()
    return ConnectionResetError("the other side has gone")


async def _refusal(upstream: aiohttp.ClientResponse) -> ApiError:
    text = (await upstream.content.read(4096)).decode("utf-8", "replace").strip()
    reason = {400: "BadRequest", 404: "NotFound", 501: "NotImplemented"}.get(upstream.status, "InternalError")
    return ApiError(upstream.status, reason, text or f"the node's agent answered {upstream.status}")


class Refusals:
    """Why WebSockets were refused lately. kubectl then tries the same again with SPDY, and shows only that answer."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[float, ApiError]] = {}

    def keep(self, path: str, error: ApiError) -> ApiError:
        if len(self.known) > 100:
            self.known.clear()
        self.known[path] = (time.monotonic(), error)
        return error

    def recent(self, path: str) -> ApiError | None:
        at, error = self.known.pop(path, (0.0, None))
        return error if time.monotonic() - at < REMEMBERED_S else None


_refusals = Refusals()


async def connect(api: Api, request: web.Request, target: Target) -> web.StreamResponse:
    """exec, attach, portforward: one WebSocket from the client, one to the agent."""
    pod = api.get(target).body
    container = "" if target.subresource == "portforward" else container_of(pod, request.query.get("container", ""))
    if target.subresource == "exec" and not request.query.getall("command", []):
        raise bad_request("you must specify at least 1 command for the container")
    base = agent_of(api, pod)
    if request.headers.get("Upgrade", "").lower() != "websocket":
        raise _refusals.recent(request.path_qs) or not_supported(
            f"{target.subresource} is served over WebSockets only, not SPDY; "
            "use kubectl 1.31 or newer, or a WebSocket client"
        )
    if target.subresource != "portforward" and not any(_true(request, key) for key in ("stdin", "stdout", "stderr")):
        raise bad_request("you must specify at least 1 of stdin, stdout, stderr")
    if not web.WebSocketResponse().can_prepare(request):
        raise bad_request("this is no handshake of a WebSocket")
    url = "/".join(filter(None, [base, target.subresource, target.namespace, target.name, container]))
    offered = [each.strip() for each in request.headers.get("Sec-WebSocket-Protocol", "").split(",") if each.strip()]
    query = MultiDict((key, value) for key, value in request.query.items() if key != "container")
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        try:
            upstream = await session.ws_connect(
                url, params=query, protocols=offered, headers=_headers(api), max_msg_size=0, autoping=True
            )
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            raise _refusals.keep(request.path_qs, _why(error, pod, container, target.subresource)) from None
        chosen = upstream.protocol
        client = web.WebSocketResponse(protocols=[chosen] if chosen else (), max_msg_size=0)
        await client.prepare(request)
        given, answers = asyncio.create_task(_pump(client, upstream)), asyncio.create_task(_pump(upstream, client))
        try:
            await asyncio.wait((given, answers), return_when=asyncio.FIRST_COMPLETED)
            if not given.done() and answers.exception() is None:
                await _check_end(request, client, pod["spec"]["nodeName"], target.subresource, answers.result())
        finally:
            for pump in (given, answers):
                pump.cancel()
            await asyncio.gather(given, answers, return_exceptions=True)
            await upstream.close()
            await client.close()
        return client


async def _check_end(request: web.Request, client: web.WebSocketResponse, node: str, asked: str, end: End) -> None:
    """An agent that goes without a word of how it ended: clients would take that for success."""
    if asked == "portforward":
        if not end.goodbye:
            raise _hang_up(request)
    elif not end.status:
        text = f"the agent of node {node} was lost during {asked}; how that ended is not known"
        await client.send_bytes(STATUS_CHANNEL + encode(internal(text).status()))


def _true(request: web.Request, key: str) -> bool:
    return request.query.get(key) in ("true", "1")


def _why(error: Exception, pod: Json, container: str, asked: str) -> ApiError:
    """What a failed handshake with the node's agent means."""
    node, name = pod["spec"]["nodeName"], pod["metadata"]["name"]
    if not isinstance(error, aiohttp.WSServerHandshakeError):
        return _unreachable(node, error)
    if error.status == 400:
        which = f"container {container} of pod {name}" if container else f"pod {name}"
        return bad_request(f"{which} does not run")
    if error.status == 404:
        return ApiError(404, "NotFound", f"pod {name} does not run on node {node} (yet)")
    return ApiError(500, "InternalError", f"the agent of node {node} refused {asked} with {error.status}")


def _unreachable(node: str, error: Exception) -> ApiError:
    text = f"the agent of node {node} cannot be reached ({error}); is the node running?"
    return ApiError(503, "ServiceUnavailable", text)


@dataclass(frozen=True)
class End:
    """How one side ended: had it sent a status, and did it say goodbye?"""

    status: bool
    goodbye: bool


async def _pump(source: Any, sink: Any) -> End:
    """From one WebSocket (of either side of aiohttp) into the other."""
    status = False
    while True:
        message = await source.receive()
        if message.type == aiohttp.WSMsgType.BINARY:
            status = status or message.data[:1] == STATUS_CHANNEL
            await sink.send_bytes(message.data)
        elif message.type == aiohttp.WSMsgType.TEXT:  # what the Python client types
            await sink.send_bytes(message.data.encode())
        else:
            return End(status, message.type == aiohttp.WSMsgType.CLOSE)
