"""One API server for the tests of this room, with the definitions that the operator needs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from apiprocess import api_server
from world import POD_GROUPS

from onward.api.crds import crds
from onward.kube.access import Access
from onward.kube.client import Client
from onward.kube.definitions import install


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    async def define(access: Access) -> None:
        async with Client(access) as client:
            names = {crd["metadata"]["name"] for crd in crds()}
            mine = [] if POD_GROUPS["metadata"]["name"] in names else [POD_GROUPS]
            await install(client, [*crds(), *mine])

    with api_server(tmp_path_factory.mktemp("operator-api")) as access:
        asyncio.run(define(access))
        yield access
