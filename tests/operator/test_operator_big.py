"""Two thousand pods: everything is listed once, and a storm of changes is a few looks."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

import pytest
from waiting import until_async
from world import a_job, end

from onward.kube.access import Access
from onward.kube.client import Client
from onward.kube.objects import NAMESPACES, PODS, name_of
from onward.operator.eyes import JOBS, last_word
from onward.operator.loop import Operator

WORKERS = 2000
LIMIT_S = 900.0


@pytest.mark.nightly
@pytest.mark.timeout(1000)
def test_many_pods(real: Access) -> None:
    async def go() -> None:
        namespace = f"big-{uuid.uuid4().hex[:6]}"
        async with Client(real) as client, Client(real) as own:
            await client.create(NAMESPACES, {"metadata": {"name": namespace}})
            operator = Operator(own, gang=False, namespace=namespace)
            task = asyncio.ensure_future(operator.run())
            await client.create(JOBS, a_job("job", workers=WORKERS), namespace)

            async def until(good: Callable[[], object], what: str) -> None:
                await until_async(lambda: task.done() or good(), what, LIMIT_S)
                assert not task.done(), "the operator ended by itself"

            await until(lambda: len(operator.eyes.pods) > WORKERS, "all pods are made")
            before, turn = operator.passes, asyncio.Semaphore(16)

            async def start(name: str) -> None:
                async with turn:
                    status = {"phase": "Running", "podIP": "127.0.0.9"}
                    await client.patch(PODS, name, {"status": status}, namespace, sub="status")

            await asyncio.gather(*(start(name_of(pod)) for pod in operator.eyes.pods))

            def running() -> bool:
                word = last_word((operator.eyes.jobs.get(f"{namespace}/job") or {}).get("status") or {})
                return word is not None and word.type == "Running"

            await until(running, "the job runs")
            assert operator.eyes.pods.lists == 1
            assert operator.passes - before < WORKERS / 4, "many changes are one look"
            await end(task)

    asyncio.run(asyncio.wait_for(go(), LIMIT_S))
