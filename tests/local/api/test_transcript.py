"""The transcript against our server; with ONWARD_TEST_KUBECONFIG or KUBEBUILDER_ASSETS, against a real one as well."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from apiserver import ApiProcess
from realserver import from_kubeconfig, started
from replay import METHODS, Replay, Server

FILES = sorted((Path(__file__).parent / "transcript").glob("*.yaml"))
_numbers = itertools.count()


@pytest.fixture(scope="session")
def ours(api: ApiProcess) -> Server:
    return Server("127.0.0.1", api.port, api.context, api.token)


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if os.environ.get("ONWARD_TEST_KUBECONFIG"):
        yield from_kubeconfig(Path(os.environ["ONWARD_TEST_KUBECONFIG"]))
    elif os.environ.get("KUBEBUILDER_ASSETS"):
        with started(Path(os.environ["KUBEBUILDER_ASSETS"]), tmp_path_factory.mktemp("real")) as server:
            yield server
    else:
        pytest.skip("no real kube-apiserver: set KUBECONFIG for make test-cluster, or KUBEBUILDER_ASSETS")


def _replay(server: Server, file: Path) -> None:
    name = f"transcript-{file.stem}-{os.getpid()}-{next(_numbers)}"
    made = Replay(server, {}).server.ask(
        "POST", "/api/v1/namespaces", b'{"metadata":{"name":"%s"}}' % name.encode(), {}
    )
    assert made[0] == 201, made[1]
    if not server.controllers:  # nobody else makes the account that pods run as
        server.ask("POST", f"/api/v1/namespaces/{name}/serviceaccounts", b'{"metadata":{"name":"default"}}', {})
    try:
        differences = Replay(server, {"ns": name}).run(file)
    finally:
        server.ask("DELETE", f"/api/v1/namespaces/{name}", None, {})
    assert not differences, "\n".join(differences)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_our_server_answers_as_written(ours: Server, file: Path) -> None:
    _replay(ours, file)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_real_server_answers_as_written(real: Server, file: Path) -> None:
    _replay(real, file)


def test_the_transcript_is_some_hundred_steps_and_each_has_a_method() -> None:
    steps = [step for file in FILES for step in yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)]
    assert len(steps) >= 150
    assert all(sum(method in step for method in METHODS) == 1 for step in steps)
