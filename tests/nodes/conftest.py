"""Jobs on several nodes, each a process here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from several import Nodes


@pytest.fixture
def make_nodes(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    made: list[Nodes] = []

    def make(nodes: int = 2, nproc: int = 2) -> Nodes:
        made.append(Nodes(tmp_path, nodes, nproc))
        return made[-1]

    yield make
    for nodes in made:
        nodes.end()
