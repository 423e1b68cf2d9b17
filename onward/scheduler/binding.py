"""Writes bindings, and finds out what became of those whose answer was lost."""

from __future__ import annotations

import asyncio

from onward.kube.client import ApiError, Client, Unreachable, backoff_s
from onward.kube.objects import PODS, Obj, key_of, name_of, namespace_of, uid_of
from onward.log import get_logger

log = get_logger("scheduler.binding")

AT_ONCE = 16


class Binder:
    """`bind` answers the node a pod has in the end; empty: it has none, and nothing of ours is under way."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._limit = asyncio.Semaphore(AT_ONCE)

    async def bind(self, pod: Obj, node: str) -> str:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name_of(pod), "namespace": namespace_of(pod), "uid": uid_of(pod)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        async with self._limit:
            try:
                path = PODS.path(namespace_of(pod), name_of(pod), "binding")
                await self._client.request("POST", path, binding)
            except (ApiError, Unreachable) as e:
                if not (isinstance(e, ApiError) and e.code in (404, 409)):  # else: gone, or bound by another
                    log.warning("binding %s to %s: %s; looking", key_of(pod), node, e)
                return await self._look(pod)
        return node

    async def _look(self, pod: Obj) -> str:
        """A place is given to nobody else before it is sure that the pod does not have it. While nobody answers there
        is nothing else to do.
        """
        attempt = 0
        while True:
            try:
                there = await self._client.get(PODS, name_of(pod), namespace_of(pod))
            except (ApiError, Unreachable) as e:
                if isinstance(e, ApiError) and e.code == 404:
                    return ""
                log.info("%s: %s", key_of(pod), e)
                await asyncio.sleep(backoff_s(attempt))
                attempt += 1
            else:
                return str(there["spec"].get("nodeName") or "") if uid_of(there) == uid_of(pod) else ""
