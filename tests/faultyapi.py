"""A proxy before a real API server that fails on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp import web

from onward.kube.access import Access

EXPIRED = '{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}\n'
Rule = Callable[[web.Request], str]  # "" for no fault, or one of the kinds below


class FaultyApi:
    """`async with FaultyApi(access) as api`: then `api.rule` decides about each request.

    drop: the connection ends before the server hears of it. lost: the server does it, the reply is lost.
    A number: that status, from nobody. expired: a watch that begins with 410. cut: a watch that ends in the middle.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self.rule: Rule = lambda request: ""
        self.fired: list[str] = []
        self.requests: list[str] = []
        self._watches: dict[int, web.Request] = {}  # a request cannot be in a set

    async def __aenter__(self) -> FaultyApi:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._access.tls(), limit=0))
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # A watch ends with whoever watched: else it would stand open until something is written to nobody.
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.access = Access(server=f"http://127.0.0.1:{port}", token=self._access.bearer())
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()
        await self._runner.cleanup()

    def cut_watches(self) -> None:
        """All that have come in, also one that the server has not heard of yet."""
        for request in list(self._watches.values()):
            self._abort(request)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path_qs}")
        kind = self.rule(request)
        if kind:
            self.fired.append(kind)
        if kind == "drop":
            return self._abort(request)
        if kind.isdigit():
            return self._made_up(int(kind))
        if kind == "expired":
            return web.Response(text=EXPIRED)
        if request.query.get("watch") == "true":
            self._watches[id(request)] = request
        try:
            return await self._pass_on(request, kind)
        finally:
            self._watches.pop(id(request), None)

    async def _pass_on(self, request: web.Request, kind: str) -> web.StreamResponse:
        async with self._session.request(**await self._same(request)) as answer:
            if kind == "lost":
                await answer.read()
                return self._abort(request)
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
            await response.prepare(request)
            try:
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
            except (aiohttp.ClientError, ConnectionError, asyncio.CancelledError):
                pass
            return response

    async def _same(self, request: web.Request) -> dict[str, Any]:
        """What to ask of the server behind us."""
        headers = {k: v for k, v in request.headers.items() if k in ("Authorization", "Content-Type", "Accept")}
        url = self._access.server + request.path_qs
        return {"method": request.method, "url": url, "data": await request.read(), "headers": headers}

    @staticmethod
    def _made_up(code: int) -> web.Response:
        """From nobody."""
        status = {"kind": "Status", "code": code, "message": f"made up {code}", "reason": "MadeUp"}
        return web.json_response(status, status=code, headers={"Retry-After": "0"} if code == 429 else {})

    @staticmethod
    def _abort(request: web.Request) -> web.Response:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()
