"""`onward wait`."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

from onward.cli.catalog import Catalog
from onward.cli.getting import seconds
from onward.cli.objects import names
from onward.errors import OnwardError, UsageError
from onward.kube.client import ApiError, Client
from onward.kube.objects import Obj, Resource

LOOK_S = 0.1


async def wait(client: Client, what: tuple[str, ...], condition: str, timeout: str, namespace: str | None) -> int:
    catalog = await Catalog.read(client)
    met = _test(condition)
    deadline = time.monotonic() + seconds(timeout)
    for kind, name in names(what):
        resource = catalog.find(kind)
        if name is None:
            raise UsageError(f"write {kind}/NAME")
        where = (namespace or client.access.namespace) if resource.namespaced else None
        while not met(await _look(client, resource, name, where)):
            if time.monotonic() > deadline:
                raise OnwardError(f"timed out after {timeout} waiting for {condition} on {resource.plural}/{name}")
            await asyncio.sleep(LOOK_S)
        print(f"{resource.kind.lower()}/{name} {'deleted' if condition == 'delete' else 'condition met'}")
    return 0


async def _look(client: Client, resource: Resource, name: str, where: str | None) -> Obj | None:
    try:
        return await client.get(resource, name, where)
    except ApiError as e:
        if e.code != 404:
            raise
        return None


def _test(condition: str) -> Any:
    kind, _, rest = condition.partition("=")
    if condition == "delete":
        return lambda obj: obj is None
    if condition == "create":
        return lambda obj: obj is not None
    if kind == "condition" and rest:
        name, _, value = rest.partition("=")
        return lambda obj: _holds(obj, name, value or "True")
    if kind == "jsonpath" and "=" in rest:
        path, _, value = rest.rpartition("=")
        steps = re.findall(r"[^.\[\]{}]+", path)
        return lambda obj: str(_at(obj, steps)) == value
    raise UsageError(f"--for {condition}: write condition=NAME[=VALUE], jsonpath={{.path}}=VALUE, create or delete")


def _holds(obj: Obj | None, name: str, value: str) -> bool:
    conditions = ((obj or {}).get("status") or {}).get("conditions") or []
    return any(
        c.get("type", "").lower() == name.lower() and c.get("status", "").lower() == value.lower() for c in conditions
    )


def _at(value: Any, steps: list[str]) -> Any:
    for step in steps:
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return value
