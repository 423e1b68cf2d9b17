from __future__ import annotations

from pathlib import Path

import pytest
from acjobs_on_nodes import Jobs
from onecluster import OneCluster


@pytest.fixture
def acjobs(cluster: OneCluster, tmp_path: Path) -> Jobs:
    return Jobs(cluster, tmp_path)
