"""Where the nodes of a job meet: names that are known later, or never."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from onward.agent import meeting
from onward.errors import UsageError


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
