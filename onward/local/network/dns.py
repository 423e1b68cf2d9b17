"""A small DNS server: cluster names from memory, everything else from the resolvers of this machine."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import cast

from onward.local.network.names import Answer, ours
from onward.log import get_logger

log = get_logger("local.dns")

A, CNAME, AAAA, SRV, ANY = 1, 5, 28, 33, 255
TTL_S = 5
UPSTREAM_S = 2.0
UDP_BYTES = 1232
ALIASES = 8  # one behind the other
NO_ERROR, BAD_FORMAT, FAILED, NO_NAME, NOT_DONE = 0, 1, 2, 3, 4


class Malformed(Exception):
    """Not a question that we can read."""


def read_question(packet: bytes) -> tuple[int, int, str, int, int]:
    """Id, flags, name, type, and where the question ends."""
    if len(packet) < 17:
        raise Malformed
    number, flags, questions = struct.unpack(">HHH", packet[:6])
    if flags & 0x8000 or questions != 1:
        raise Malformed
    at, labels = 12, []
    while True:
        if at >= len(packet):
            raise Malformed
        length = packet[at]
        if length > 63:
            raise Malformed
        at += 1
        if length == 0:
            break
        labels.append(packet[at : at + length].decode("ascii", errors="replace"))
        at += length
    if at + 4 > len(packet) or sum(map(len, labels)) > 255:
        raise Malformed
    kind, _ = struct.unpack(">HH", packet[at : at + 4])
    return number, flags, ".".join(labels).lower(), kind, at + 4


def write_name(name: str) -> bytes:
    parts = [p.encode() for p in name.rstrip(".").split(".") if p]
    return b"".join(bytes([len(p)]) + p for p in parts) + b"\0"


def _record(name: bytes, kind: int, data: bytes) -> bytes:
    return name + struct.pack(">HHIH", kind, 1, TTL_S, len(data)) + data


def reply(packet: bytes, code: int, records: list[bytes], limit: int = 65535) -> bytes:
    """The question back, with answers. What does not fit a datagram is cut, and marked so."""
    number, flags, _, _, end = read_question(packet)
    kept, size, cut = [], end, 0
    for record in records:
        if size + len(record) > limit:
            cut = 0x0200
            break
        kept.append(record)
        size += len(record)
    answer_flags = 0x8000 | (flags & 0x0100) | 0x0480 | cut | code
    return struct.pack(">HHHHHH", number, answer_flags, 1, len(kept), 0, 0) + packet[12:end] + b"".join(kept)


def question(name: str, kind: int) -> bytes:
    head = struct.pack(">HHHHHH", random.randrange(1 << 16), 0x0100, 1, 0, 0, 0)
    return head + write_name(name) + struct.pack(">HH", kind, 1)


def data_in(packet: bytes, kind: int) -> list[bytes]:
    """Of the answers of this type in a reply; none where it cannot be read."""
    found = []
    try:
        questions, answers = struct.unpack(">HH", packet[4:8])
        at = 12
        for _ in range(questions):
            at = _after_name(packet, at) + 4
        for _ in range(answers):
            at = _after_name(packet, at)
            this, _, _, length = struct.unpack(">HHIH", packet[at : at + 10])
            at += 10 + length
            if this == kind and at <= len(packet):
                found.append(packet[at - length : at])
    except (struct.error, IndexError):
        return []
    return found


def _after_name(packet: bytes, at: int) -> int:
    while (length := packet[at]) != 0:
        if length >= 0xC0:  # the rest stands elsewhere
            return at + 2
        at += 1 + length
    return at + 1


HERE = b"\xc0\x0c"  # the name in the question


def records_for(answer: Answer, kind: int, here: bytes = HERE) -> list[bytes]:
    if answer.alias:
        return [_record(here, CNAME, write_name(answer.alias))]
    found = []
    if kind in (A, ANY):
        addresses = list(answer.addresses)
        random.shuffle(addresses)
        found += [_record(here, A, socket.inet_aton(a)) for a in addresses]
    if kind in (SRV, ANY):
        found += [_record(here, SRV, struct.pack(">HHH", 0, 100, p) + write_name(h)) for p, h in answer.services]
    return found


class DnsServer:
    """`resolve` answers for our own names."""

    def __init__(self, resolve: Callable[[str], Answer], upstream: list[str]) -> None:
        self._resolve, self._upstream = resolve, upstream
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(self, packet: bytes, limit: int) -> bytes | None:
        try:
            _, _, name, kind, _ = read_question(packet)
        except Malformed:
            return None
        if ours(name):
            found = self._resolve(name)
            records = records_for(found, kind)
            if found.alias and kind in (A, AAAA):  # those who ask do not ask again: they want the end of the way
                records += await self._behind(found.alias.rstrip(".").lower(), kind)
            return reply(packet, NO_ERROR if found.known else NO_NAME, records, limit)
        if name.endswith(".in-addr.arpa") or "." not in name:
            return reply(packet, NO_NAME, [])  # nobody outside knows our addresses or bare names
        return await self._ask_outside(packet) or reply(packet, FAILED, [])

    async def _behind(self, alias: str, kind: int) -> list[bytes]:
        """Records of what a name stands for, which may stand for another one."""
        records: list[bytes] = []
        for _ in range(ALIASES):
            if not ours(alias):
                answer = await self._ask_outside(question(alias, kind))
                return records + [_record(write_name(alias), kind, data) for data in data_in(answer or b"", kind)]
            found = self._resolve(alias)
            if not found.alias:
                return records + records_for(found, kind, write_name(alias))
            records += records_for(found, kind, write_name(alias))
            alias = found.alias.rstrip(".").lower()
        return records

    async def _ask_outside(self, packet: bytes) -> bytes | None:
        loop = asyncio.get_running_loop()
        for server in self._upstream:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                try:
                    sock.connect((server, 53))
                    await loop.sock_sendall(sock, packet)
                    data = await asyncio.wait_for(loop.sock_recv(sock, 65535), UPSTREAM_S)
                except (OSError, asyncio.TimeoutError):
                    continue
                if data[:2] == packet[:2]:
                    return data
        return None

    async def serve_udp(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        server = self

        class Protocol(asyncio.DatagramProtocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                self.transport = cast(asyncio.DatagramTransport, transport)

            def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
                task = asyncio.ensure_future(self._answer(data, address))
                server._tasks.add(task)
                task.add_done_callback(server._tasks.discard)

            async def _answer(self, data: bytes, address: tuple[str, int]) -> None:
                found = await server.answer(data, UDP_BYTES)
                if found is not None:
                    self.transport.sendto(found, address)

        await asyncio.get_running_loop().create_datagram_endpoint(Protocol, sock=sock)

    async def serve_tcp(self, sock: socket.socket) -> None:
        await asyncio.start_server(self._stream, sock=sock)

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await asyncio.wait_for(reader.readexactly(2), 10.0)
                packet = await asyncio.wait_for(reader.readexactly(struct.unpack(">H", head)[0]), 10.0)
                found = await self.answer(packet, 65535)
                if found is None:
                    return
                writer.write(struct.pack(">H", len(found)) + found)
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.TimeoutError, OSError):
            pass
        finally:
            writer.close()


def machine_resolvers(path: Path = Path("/etc/resolv.conf")) -> list[str]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    return [w[1] for w in (line.split() for line in lines) if len(w) > 1 and w[0] == "nameserver" and "." in w[1]]
