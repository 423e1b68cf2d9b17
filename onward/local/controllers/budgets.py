"""PodDisruptionBudgets: how many evictions each allows, for those who look. The API server counts for itself."""

from __future__ import annotations

import asyncio
import time

from onward.core import disruption
from onward.core.selectors import matches
from onward.kube.client import ApiError, Client
from onward.kube.informer import Informer
from onward.kube.objects import PODS, Obj, Resource, key_of, namespace_of, split_key, stamp
from onward.kube.queue import WorkQueue, work

BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")


class Budgets:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._queue = WorkQueue()
        self._budgets = Informer(client, BUDGETS, on_change=self._on_budget)
        self._pods = Informer(client, PODS, on_change=self._on_pod)

    async def run(self) -> None:
        tasks = [asyncio.ensure_future(i.run()) for i in (self._budgets, self._pods)]
        try:
            await self._budgets.synced()
            await self._pods.synced()
            tasks.append(asyncio.ensure_future(work(self._queue, self._sync, 1)))
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _on_budget(self, old: Obj | None, new: Obj | None) -> None:
        if new is not None:
            self._queue.add(key_of(new))

    def _on_pod(self, old: Obj | None, new: Obj | None) -> None:
        for budget in self._budgets:
            if any(_covers(budget, pod) for pod in (old, new) if pod):
                self._queue.add(key_of(budget))

    async def _sync(self, key: str) -> None:
        budget = self._budgets.get(key)
        if budget is None:
            return
        pods = [pod for pod in self._pods if _covers(budget, pod)]
        wanted = disruption.status(budget, pods, stamp(time.time()))
        if budget.get("status") == wanted:
            return
        namespace, name = split_key(key)
        try:
            await self._client.patch(BUDGETS, name, {"status": wanted}, namespace, sub="status")
        except ApiError as e:
            if e.code != 404:
                raise


def _covers(budget: Obj, pod: Obj) -> bool:
    selector = (budget.get("spec") or {}).get("selector")
    return namespace_of(budget) == namespace_of(pod) and matches(selector, pod["metadata"].get("labels"))
