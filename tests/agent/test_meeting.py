"""Where the nodes of a job meet: names that are known later, or never."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from onward.agent import meeting
from onward.cli.flags import parse_run
from onward.errors import UsageError
from onward.wire.token import read_token


def test_a_name_may_become_known_a_little_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a Service that has just been made."""
    asked = []

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        if len(asked) < 4:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("10.0.0.7", port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(meeting, "LOOK_S", 0.01)
    told: list[str] = []
    assert meeting._reachable([("job-master-0", 9601)], 60.0, told.append) == [("job-master-0", 9601)]
    assert told == ["job-master-0: no such name yet; looking again for 60 s"]


def test_one_that_stays_unknown_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(UsageError, match="Name or service not known; give the address where the nodes of the job meet"):
        meeting._reachable([("typo", 9601), ("tpyo", 9601)], 0.0, lambda text: None)


def test_a_pod_has_one_agent_at_a_time_by_the_word_of_the_kernel() -> None:
    """Also across its containers: they share the network, and with it this name, but not their processes."""
    pod = f"uid-{os.getpid()}"
    first = meeting._claim(pod)
    assert first is not None
    assert meeting._claim(pod) is None, "it lives"
    first.close()
    again = meeting._claim(pod)
    assert again is not None, "it is dead, however it died"
    again.close()


def test_the_only_pod_of_a_job_can_be_asked_how_it_goes(tmp_path: Path) -> None:
    """Its manager listens where the operator looks for it. Another launcher in that pod has its own."""
    own = f"127.9.{os.getpid() // 250 % 250}.{os.getpid() % 250 + 1}"  # nobody else's
    (tmp_path / "token").write_text("a" * 64)
    env = {"ONWARD_NNODES": "1", "ONWARD_NODE_RANK": "0", "ONWARD_RDZV_ENDPOINT": f"{own}:9601"}
    env |= {"ONWARD_LOCAL_ADDR": own, "ONWARD_POD_UID": f"only-{os.getpid()}"}
    settings = parse_run(["--token-file", str(tmp_path / "token"), __file__], env)
    first = meeting.meet(settings, lambda text: None)
    second = meeting.meet(settings, lambda text: None)
    try:
        assert first.manager_socket.getsockname() == (own, 9601)
        assert first.token == read_token(tmp_path / "token")
        assert (second.hosts, second.peer_socket) == (True, None)
        assert second.token != first.token
    finally:
        for sock in (first.manager_socket, first.peer_socket, first.pod_socket, second.manager_socket):
            assert sock is not None
            sock.close()
