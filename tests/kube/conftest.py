"""One API server for the tests of this room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from apiprocess import api_server

from onward.kube.access import Access


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    with api_server(tmp_path_factory.mktemp("kube-api")) as access:
        yield access
