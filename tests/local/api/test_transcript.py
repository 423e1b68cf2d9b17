"""The transcript against our server; with ONWARD_TEST_KUBECONFIG or KUBEBUILDER_ASSETS, against a real one as well.

Our server must answer as the steps say, and as a real kube-apiserver did when the answers were recorded, but for the
differences that `differences.yaml` explains. `ONWARD_RECORD=1` with KUBEBUILDER_ASSETS records them anew.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import recorded
import yaml
from apiserver import ApiProcess
from realserver import from_kubeconfig, started
from replay import METHODS, PATIENCE_S, Replay, Server
from waiting import until

HERE = Path(__file__).parent
FILES = sorted((HERE / "transcript").glob("*.yaml"))
VERSION = HERE / "recorded" / "VERSION"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own: what other tests have defined would show in the answers."""
    process = ApiProcess(tmp_path_factory.mktemp("transcript"))
    process.start()
    try:
        yield Server("127.0.0.1", process.port, process.context, process.token)
    finally:
        process.stop()


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if os.environ.get("ONWARD_TEST_KUBECONFIG"):
        yield from_kubeconfig(Path(os.environ["ONWARD_TEST_KUBECONFIG"]))
    elif os.environ.get("KUBEBUILDER_ASSETS"):
        with started(Path(os.environ["KUBEBUILDER_ASSETS"]), tmp_path_factory.mktemp("real")) as server:
            yield server
    else:
        pytest.skip("no real kube-apiserver: set KUBECONFIG for make test-cluster, or KUBEBUILDER_ASSETS")


def _replay(server: Server, file: Path) -> Replay:
    name = f"transcript-{file.stem}-{os.getpid()}-{next(_numbers)}"
    made = server.ask("POST", "/api/v1/namespaces", b'{"metadata":{"name":"%s"}}' % name.encode(), {})
    assert made[0] == 201, made[1]
    accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
    if not server.controllers:  # nobody else makes the account that pods run as
        server.ask("POST", accounts, b'{"metadata":{"name":"default"}}', {})
    account = f"{accounts}/default"
    until(lambda: server.ask("GET", account, None, {})[0] == 200, "pods have an account there", PATIENCE_S)
    replay = Replay(server, {"ns": name})
    try:
        replay.run(file)
    finally:
        server.ask("DELETE", f"/api/v1/namespaces/{name}", None, {})
    return replay


def _differences(replay: Replay, record: recorded.Record) -> list[str]:
    assert len(record.answers) == len(replay.answers), "the transcript has other steps than when it was recorded"
    found = []
    for number, answer in enumerate(replay.answers, 1):
        if "code" in answer and "code" in record.answers[number - 1]:
            problems = record.unexplained(number, answer, replay.kept)
            if problems:
                found.append("\n".join([f"{record.file.stem} step {number} ({answer['it']}) differs:", *problems]))
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_our_server_answers_as_written_and_as_a_real_one(ours: Server, file: Path) -> None:
    replay, record = _replay(ours, file), recorded.load(file.stem)
    problems = [*replay.differences, *_differences(replay, record)]
    assert not problems, "\n".join(problems)
    assert not record.stale(), "differences.yaml explains what is no difference any more"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_real_server_answers_as_written(real: Server, file: Path) -> None:
    replay, record = _replay(real, file), recorded.load(file.stem)
    version = json.loads(real.ask("GET", "/version", None, {})[1])["gitVersion"]
    if os.environ.get("ONWARD_RECORD"):
        recorded.save(record, replay.answers, replay.kept)
        VERSION.write_text(version + "\n", encoding="utf-8")
    assert not replay.differences, "\n".join(replay.differences)
    if not os.environ.get("ONWARD_RECORD") and real.alone and version == VERSION.read_text(encoding="utf-8").strip():
        problems = _differences(replay, record)
        assert not problems, "\n".join(problems)


def test_the_transcript_is_some_hundred_steps_and_each_has_a_method() -> None:
    steps = [step for file in FILES for step in yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)]
    assert len(steps) >= 150
    assert all(sum(method in step for method in METHODS) == 1 for step in steps)
