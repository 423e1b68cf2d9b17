"""Subresources, and resources that are questions and not objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web

from onward.local.api.request import Target, WriteOptions
from onward.local.api.rest import Api
from onward.local.api.status import not_supported

if TYPE_CHECKING:
    from onward.local.api.server import Server

Json = dict[str, Any]


def account_of(api: Api, token: str) -> str | None:
    return None


async def handle(server: Server, request: web.Request, target: Target) -> web.StreamResponse:
    raise not_supported(f"{target.resource.plural}/{target.subresource} is not supported by onward's API server")


async def virtual_create(
    server: Server, request: web.Request, target: Target, options: WriteOptions
) -> web.Response | None:
    return None
