"""One API server for all tests of this folder: a real process on loopback, killed at the end."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import machine
import pytest
from apiserver import ApiProcess
from realserver import Elsewhere
from waiting import until

_numbers = itertools.count()


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    """Ours; or the one that ONWARD_TEST_KUBECONFIG names (`make test-cluster`), for tests that hold for any."""
    place, other = tmp_path_factory.mktemp("api"), os.environ.get("ONWARD_TEST_KUBECONFIG")
    if other:
        yield Elsewhere(place, Path(other))
        return
    process = ApiProcess(place)
    process.start()
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture
def namespace(api: ApiProcess) -> Iterator[str]:
    """A namespace of the test's own, so that tests do not see each other's objects."""
    name = f"t{next(_numbers)}" if api.ours else f"onward-t{next(_numbers)}-{os.getpid()}"
    api.ok("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    until(lambda: api.call("GET", account)[0] == 200, "pods have an account there")
    yield name
    api.call("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="session")
def kubectl(api: ApiProcess) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Stock kubectl against the server; skips loudly where there is none."""
    if not machine.use_kubectl():
        pytest.skip(machine.NO_KUBECTL)
    home = api.state / "kube-home"
    home.mkdir(exist_ok=True)

    def run(*args: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "KUBECONFIG": str(api.state / "kubeconfig"), "HOME": str(home)}
        done = subprocess.run(
            ["kubectl", *args], input=stdin, capture_output=True, text=True, timeout=60, env=environment, check=False
        )
        if check:
            assert done.returncode == 0, f"kubectl {' '.join(args)}\n{done.stdout}\n{done.stderr}"
        return done

    return run
