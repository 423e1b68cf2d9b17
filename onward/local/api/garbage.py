"""Owners and dependents; namespaces and their content; CRDs and their objects."""

from __future__ import annotations

import asyncio

from onward.local.api.rest import Api


def start(api: Api) -> list[asyncio.Task[None]]:
    return []
