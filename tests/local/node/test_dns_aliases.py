"""A name that stands for another one, in the cluster or outside: who asks gets the addresses at the end of the way."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from onward.local.network import dns
from onward.local.network.names import Answer

NAMES = {
    "ext.default.svc.cluster.local": Answer(True, alias="example.org"),
    "loop.default.svc.cluster.local": Answer(True, alias="loop.default.svc.cluster.local"),
    "one.default.svc.cluster.local": Answer(True, alias="web.default.svc.cluster.local."),
    "web.default.svc.cluster.local": Answer(True, ["10.96.0.7"]),
}


def upstream(number: int) -> bytes:
    """An answer as it comes from outside: example.org is www.example.org, which has two addresses."""
    head = struct.pack(">HHHHHH", number, 0x8180, 1, 3, 0, 0)
    record = struct.pack(">HHIH", dns.A, 1, 60, 4)
    alias = dns.write_name("www.example.org")
    return (
        head + dns.write_name("example.org") + struct.pack(">HH", dns.A, 1)
        + b"\xc0\x0c" + struct.pack(">HHIH", dns.CNAME, 1, 60, len(alias)) + alias
        + alias + record + b"\x01\x02\x03\x04" + alias + record + b"\x01\x02\x03\x05"
    )  # fmt: skip


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> dns.DnsServer:
    found = dns.DnsServer(lambda name: NAMES.get(name, Answer(False)), [])

    async def outside(packet: bytes) -> bytes:
        return upstream(struct.unpack(">H", packet[:2])[0])

    monkeypatch.setattr(found, "_ask_outside", outside)
    return found


def ask(server: dns.DnsServer, name: str) -> list[str]:
    answer = asyncio.run(server.answer(dns.question(name, dns.A), 65535))
    assert answer is not None
    return sorted(socket.inet_ntoa(data) for data in dns.data_in(answer, dns.A))


def test_addresses_at_the_end(server: dns.DnsServer) -> None:
    assert ask(server, "web.default.svc.cluster.local") == ["10.96.0.7"]
    assert ask(server, "one.default.svc.cluster.local") == ["10.96.0.7"]
    assert ask(server, "ext.default.svc.cluster.local") == ["1.2.3.4", "1.2.3.5"]
    assert ask(server, "loop.default.svc.cluster.local") == []


@pytest.mark.parametrize("cut", range(len(upstream(1))))
def test_half_an_answer_is_none(cut: int) -> None:
    found = dns.data_in(upstream(1)[:cut], dns.A)
    assert found in ([], [b"\x01\x02\x03\x04"])
