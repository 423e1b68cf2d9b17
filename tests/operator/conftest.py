"""One API server for the tests of this room, with the definitions that the operator needs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from faultyapi import ApiProcess
from world import POD_GROUPS

from onward.api.crds import crds
from onward.kube.access import Access
from onward.kube.client import Client
from onward.kube.definitions import install


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    process = ApiProcess(tmp_path_factory.mktemp("operator-api"))

    async def define() -> None:
        async with Client(process.access) as client:
            names = {crd["metadata"]["name"] for crd in crds()}
            mine = [] if POD_GROUPS["metadata"]["name"] in names else [POD_GROUPS]
            await install(client, [*crds(), *mine])

    asyncio.run(define())
    yield process.access
    process.stop()
