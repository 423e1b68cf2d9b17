"""One API server for the tests of this room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from faultyapi import ApiProcess

from onward.kube.access import Access


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    process = ApiProcess(tmp_path_factory.mktemp("scheduler-api"))
    yield process.access
    process.stop()
