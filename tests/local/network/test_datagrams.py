"""UDP through a service's address: a client stays with one pod as long as it speaks and the pod is there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest
from waiting import until_async

from onward.local.network import datagrams
from onward.local.network.datagrams import Back, Datagrams
from onward.local.network.inside import Inside


class Echo:
    """A pod that answers each packet with its own name; it remembers from where they came."""

    def __init__(self, name: str) -> None:
        self.name, self.sources = name.encode(), set[tuple[str, int]]()
        self.sock = udp()

    def __enter__(self) -> Echo:
        asyncio.get_running_loop().add_reader(self.sock, self._read)
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.get_running_loop().remove_reader(self.sock)
        self.sock.close()

    @property
    def back(self) -> Back:
        address, port = self.sock.getsockname()
        return str(address), int(port)

    def _read(self) -> None:
        data, source = self.sock.recvfrom(65535)
        self.sources.add(source)
        self.sock.sendto(self.name + b":" + data, source)


def udp() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    sock.setblocking(False)
    return sock


Story = Callable[[Datagrams, socket.socket, list[Back], Echo, Echo], Awaitable[None]]


def tell(story: Story) -> None:
    async def go() -> None:
        near, client = udp(), udp()
        client.connect(near.getsockname())
        with Echo("one") as one, Echo("two") as two:
            backs = [one.back, two.back]
            front = Datagrams(Inside(""), near, lambda source: backs)
            try:
                await asyncio.wait_for(story(front, client, backs, one, two), 60)
            finally:
                front.close()
                client.close()

    asyncio.run(go())


async def heard(client: socket.socket) -> bytes:
    return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 65535), 30)


def test_packets_that_come_at_once_are_one_client() -> None:
    async def story(front: Datagrams, client: socket.socket, backs: list[Back], one: Echo, two: Echo) -> None:
        for n in range(20):
            client.send(b"%d" % n)
        assert [await heard(client) for _ in range(20)] == [b"one:%d" % n for n in range(20)]
        assert len(one.sources) == 1
        assert not two.sources

    tell(story)


def test_a_client_goes_over_when_its_pod_has_gone() -> None:
    async def story(front: Datagrams, client: socket.socket, backs: list[Back], one: Echo, two: Echo) -> None:
        client.send(b"a")
        assert await heard(client) == b"one:a"
        del backs[0]
        client.send(b"b")
        assert await heard(client) == b"two:b"
        backs.clear()  # nobody: packets are lost, as on a cluster
        client.send(b"c")
        await until_async(lambda: not front._links, "nothing is kept for it")
        backs.append(one.back)
        client.send(b"d")
        assert await heard(client) == b"one:d"

    tell(story)


def test_only_a_silent_client_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(datagrams, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(datagrams, "LOOK_S", 0.02)

    async def story(front: Datagrams, client: socket.socket, backs: list[Back], one: Echo, two: Echo) -> None:
        for word in (b"x", b"y", b"z"):  # more than a minute in all, and never silent for a minute
            client.send(word)
            assert await heard(client) == b"one:" + word
            clock[0] += 0.7 * datagrams.IDLE_S
            timer = front._timer
            await until_async(lambda timer=timer: front._timer is not timer, "it has looked")
        assert len(one.sources) == 1
        clock[0] += datagrams.IDLE_S
        await until_async(lambda: not front._links, "it was silent")
        client.send(b"back")
        assert await heard(client) == b"one:back"
        assert len(one.sources) == 2

    tell(story)
