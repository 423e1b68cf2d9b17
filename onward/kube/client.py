"""The client: one method per verb, plain dictionaries in and out.

Reads are repeated when the server is busy or the connection breaks; writes only when the server says that it did not do
them (429, or nobody listening). A write whose reply was lost is for the caller, who alone knows whether to look first.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from onward.errors import OnwardError
from onward.kube.access import Access, AccessError
from onward.kube.objects import Obj, Resource
from onward.log import get_logger

log = get_logger("kube.client")

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

REQUEST_S = 30.0
ATTEMPTS = 6
LINE_BYTES = 64 * 1024 * 1024  # one watch event is one line; objects are at most a few MB
QUIET_S = 90.0  # a watch that says nothing for longer is taken up anew: bookmarks come each 60 to 75 seconds


class ApiError(OnwardError):
    """The server said no. `code` and `reason` are for programs, the text is for people."""

    def __init__(self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message or f"the API server answered {code}")
        self.code, self.reason, self.details = code, reason, dict(details or {})

    @property
    def retry_after_s(self) -> float | None:
        seconds = self.details.get("retryAfterSeconds")
        return float(seconds) if seconds is not None else None


class Unreachable(OnwardError):
    """Nobody answered, or the connection broke: whether a write was done is not known."""


def backoff_s(attempt: int, base_s: float = 0.1, cap_s: float = 5.0) -> float:
    """Doubling, with half of it random so that many clients do not come back together."""
    delay = min(cap_s, base_s * 2.0 ** min(attempt, 30))
    return delay * (0.5 + random.random() / 2)


class Client:
    """Use as `async with Client(access) as client`."""

    def __init__(self, access: Access, *, user_agent: str = "onward") -> None:
        self.access = access
        self._agent = user_agent
        self._session: aiohttp.ClientSession | None = None
        self._login = asyncio.Lock()

    async def __aenter__(self) -> Client:
        connector = aiohttp.TCPConnector(ssl=self.access.tls(), limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers={"User-Agent": self._agent},
            read_bufsize=1 << 20,
            trust_env=True,
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._session is not None:
            await self._session.close()

    def drop_connections(self) -> None:
        """Close every connection now (a node that is cut off does this)."""
        if self._session is not None and self._session.connector is not None:
            self._session.connector.close()

    async def get(self, resource: Resource, name: str, namespace: str | None = None, **params: str) -> Obj:
        return await self.request("GET", resource.path(namespace, name), params=params)

    async def list(self, resource: Resource, namespace: str | None = None, **params: str) -> Obj:
        """Everything, in pages; the answer is one list with the version of its first page's snapshot."""
        params = {"limit": "500", **params}
        whole = await self.request("GET", resource.path(namespace), params=params)
        page = whole
        while page.get("metadata", {}).get("continue"):
            params["continue"] = page["metadata"]["continue"]
            page = await self.request("GET", resource.path(namespace), params=params)
            whole["items"] += page.get("items") or []
            whole["metadata"] = page["metadata"]
        whole["items"] = whole.get("items") or []
        return whole

    async def create(self, resource: Resource, obj: Obj, namespace: str | None = None, **params: str) -> Obj:
        return await self.request("POST", resource.path(namespace), obj, params=params)

    async def update(
        self, resource: Resource, obj: Obj, namespace: str | None = None, sub: str | None = None, **params: str
    ) -> Obj:
        path = resource.path(namespace, obj["metadata"]["name"], sub)
        return await self.request("PUT", path, obj, params=params)

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Any,
        namespace: str | None = None,
        sub: str | None = None,
        content_type: str = MERGE,
        **params: str,
    ) -> Obj:
        return await self.request("PATCH", resource.path(namespace, name, sub), patch, content_type, params)

    async def delete(
        self, resource: Resource, name: str, namespace: str | None = None, options: Obj | None = None
    ) -> Obj:
        return await self.request("DELETE", resource.path(namespace, name), options)

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
        timeout_s: float = REQUEST_S,
        accept: str = "application/json",
    ) -> Obj:
        attempt = 0
        while True:
            token = self.access.bearer()
            try:
                return await self._once(method, path, body, content_type, params or {}, timeout_s, accept)
            except ApiError as e:
                if e.code == 401 and attempt < ATTEMPTS and await self._log_in_again(token):
                    attempt += 1
                    continue
                again = e.code == 429 or (method == "GET" and e.code in (500, 502, 503, 504))
                if not again or attempt >= ATTEMPTS:
                    raise
                wait_s = e.retry_after_s if e.retry_after_s is not None else backoff_s(attempt)
            except Unreachable as e:
                refused = isinstance(e.__cause__, aiohttp.ClientConnectorError)
                if not (refused or method == "GET") or attempt >= ATTEMPTS:
                    raise
                wait_s = backoff_s(attempt)
            await asyncio.sleep(wait_s)
            attempt += 1

    async def _log_in_again(self, used: str) -> bool:
        """The server will not have this token any more. True: there is another one now."""
        if self.access.login is None:
            return False
        async with self._login:
            if self.access.bearer() == used:  # else somebody beside us has seen to it
                try:
                    await asyncio.to_thread(self.access.login.renew)
                except AccessError as e:
                    log.warning("%s", e)
            return self.access.bearer() != used

    async def _once(
        self,
        method: str,
        path: str,
        body: Any,
        content_type: str,
        params: Mapping[str, str],
        timeout_s: float,
        accept: str,
    ) -> Obj:
        data = None if body is None else json.dumps(body).encode()
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._send(method, path, data, content_type, params, timeout, accept) as answer:
                text = await answer.read()
                if answer.status >= 400:
                    raise _error(answer.status, text, answer.headers)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as e:
            raise Unreachable(f"{method} {self.access.server}{path}: {e or type(e).__name__}") from e
        parsed = json.loads(text or b"{}")
        return parsed if isinstance(parsed, dict) else {"items": parsed}

    def _send(
        self,
        method: str,
        path: str,
        data: bytes | None,
        content_type: str,
        params: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        accept: str = "application/json",
    ) -> Any:
        if self._session is None:
            raise RuntimeError("use the client as a context manager: async with Client(access) as client")
        headers = {"Accept": accept}
        if data is not None:
            headers["Content-Type"] = content_type
        bearer = self.access.bearer()
        if bearer:
            headers["Authorization"] = f"Bearer {bearer}"
        return self._session.request(
            method,
            self.access.server + path,
            data=data,
            params=dict(params),
            headers=headers,
            timeout=timeout,
            server_hostname=self.access.server_name,
        )

    async def stream(self, path: str, params: Mapping[str, str] | None = None) -> AsyncIterator[bytes]:
        """Bytes as they come, for logs."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_S)
        try:
            async with self._send("GET", path, None, "", params or {}, timeout) as answer:
                if answer.status >= 400:
                    raise _error(answer.status, await answer.read(), answer.headers)
                async for chunk in answer.content.iter_any():
                    yield chunk
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as e:
            raise Unreachable(f"GET {self.access.server}{path}: {e or type(e).__name__}") from e

    async def watch(self, resource: Resource, namespace: str | None, version: str, **params: str) -> AsyncIterator[Obj]:
        """Events after `version`, until the server ends the watch. An ERROR event is raised as ApiError.

        A server owes nobody a bookmark: where nothing happens a watch may be silent. It ends then, too, in case nobody
        is there any more: the next one will tell.
        """
        asked = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true", **params}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_S, sock_read=QUIET_S)
        path, token = resource.path(namespace), self.access.bearer()
        try:
            async with self._send("GET", path, None, "", asked, timeout) as answer:
                if answer.status == 401:
                    await self._log_in_again(token)  # for the next try
                if answer.status >= 400:
                    raise _error(answer.status, await answer.read(), answer.headers)
                try:
                    async for line in _lines(answer.content):
                        event = json.loads(line)
                        if event.get("type") == "ERROR":
                            status = event["object"]
                            raise _error(int(status.get("code", 500)), json.dumps(status).encode(), {})
                        yield event
                except aiohttp.ServerTimeoutError:
                    log.debug("watch %s: silent for %g s", path, QUIET_S)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as e:
            raise Unreachable(f"watch {self.access.server}{path}: {e or type(e).__name__}") from e


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length below a bound; aiohttp's own reader gives up at its buffer size."""
    held = bytearray()
    async for chunk in content.iter_any():
        held += chunk
        while (end := held.find(b"\n")) >= 0:
            line = bytes(held[:end])
            del held[: end + 1]
            if line.strip():
                yield line
        if len(held) > LINE_BYTES:
            raise ValueError(f"one event is longer than {LINE_BYTES} bytes")


def _error(code: int, text: bytes, headers: Mapping[str, str]) -> ApiError:
    try:
        status = json.loads(text)
        message, reason = str(status.get("message", "")), str(status.get("reason", ""))
        details = status.get("details") or {}
    except (ValueError, AttributeError):
        message, reason, details = text.decode(errors="replace")[:500], "", {}
    if "Retry-After" in headers and "retryAfterSeconds" not in details:
        try:
            details = {**details, "retryAfterSeconds": int(headers["Retry-After"])}
        except ValueError:
            pass
    return ApiError(code, reason, message, details)
