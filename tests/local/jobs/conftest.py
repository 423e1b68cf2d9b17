"""Jobs in a cluster of this machine, or in any that is given."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from acjobs_on_nodes import Jobs
from by_kubectl import Kubectl
from given import Somewhere, given
from onecluster import OneCluster
from trained import Trained


@pytest.fixture
def acjobs(cluster: OneCluster, tmp_path: Path) -> Jobs:
    return Jobs(cluster, tmp_path)


@pytest.fixture(scope="session")
def calm(cluster: OneCluster, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Where a run of so many steps in which nothing went wrong has left its last state."""

    @cache
    def of(steps: int) -> Path:
        tmp = tmp_path_factory.mktemp("calm")
        job = Trained(Jobs(cluster, tmp), "calm", tmp, "recover", steps=steps, pace=("--pace", "0"))
        job.ends_well()
        return job.digest

    return of


@pytest.fixture(scope="session")
def somewhere(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Somewhere]:
    """The cluster that ONWARD_TEST_KUBECONFIG names, or that of this machine."""
    config = os.environ.get("ONWARD_TEST_KUBECONFIG")
    if not config:
        cluster: OneCluster = request.getfixturevalue("cluster")
        yield Somewhere(cluster.state / "kubeconfig", "any", sys.executable, here=True)
        return
    with given(Path(config), tmp_path_factory.mktemp("given")) as found:
        yield found


@pytest.fixture
def anywhere(somewhere: Somewhere, tmp_path: Path) -> Iterator[Kubectl]:
    """A namespace of its own, there."""
    found = Kubectl(somewhere.kubeconfig, tmp_path, f"jobs-{uuid.uuid4().hex[:8]}")
    found.kubectl("create", "namespace", found.namespace)
    try:
        yield found
    finally:
        found.kubectl("delete", "namespace", found.namespace, "--ignore-not-found")
