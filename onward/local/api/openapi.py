"""OpenAPI v2 and v3 made from the registry."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from onward.local.api.registry import Registry
from onward.local.api.status import no_such_path

Json = dict[str, Any]


class Documents:
    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    def answer(self, request: web.Request, parts: list[str]) -> web.Response:
        raise no_such_path()
