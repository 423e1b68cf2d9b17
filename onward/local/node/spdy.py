"""SPDY/3.1 frames: how `kubectl port-forward` puts many connections into one.

Only what that needs: streams that the other side opens, data in both directions, their ends, pings. Nothing here waits
or sends; bytes go in and frames come out. There is no flow control, as in the library that kubectl uses.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field

SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY = 1, 2, 3, 6, 7
FIN = 0x01
VERSION = 3
MOST_HEADERS = 1 << 16
CANCEL = 5

# What headers are compressed with, as the protocol has it: words that come often, each after its length, and a text.
_WORDS = """options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age
allow authorization cache-control connection content-base content-encoding content-language content-length
content-location content-md5 content-range content-type date etag expect expires from host if-match
if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma
proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade
user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie
keep-alive origin"""
_TEXT = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Authoritat"
    "ive Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found5"
    "00 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct N"
    "ov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,applic"
    "ation/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf"
    "-8charset=iso-8859-1,utf-,*,enq=0."
)
DICTIONARY = b"".join(
    struct.pack(">I", len(word)) + word.replace("_", " ").encode() for word in _WORDS.split()
) + _TEXT.encode()  # fmt: skip


class Malformed(Exception):
    """Not SPDY/3.1."""


@dataclass(frozen=True)
class Frame:
    """`kind` 0 is data; of others, `data` is what follows the stream's number."""

    kind: int
    stream: int
    flags: int = 0
    data: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class Reader:
    """Bytes of one connection, in the order in which they came, become frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)

    def feed(self, data: bytes) -> list[Frame]:
        self._bytes += data
        found = []
        while len(self._bytes) >= 8:
            first, second = struct.unpack(">II", self._bytes[:8])
            flags, length = second >> 24, second & 0xFFFFFF
            if len(self._bytes) < 8 + length:
                break
            body = bytes(self._bytes[8 : 8 + length])
            del self._bytes[: 8 + length]
            found.append(self._control(first, flags, body) if first >> 31 else Frame(0, first, flags, body))
        return found

    def _control(self, first: int, flags: int, body: bytes) -> Frame:
        kind = first & 0xFFFF
        if (first >> 16) & 0x7FFF != VERSION or len(body) < 4:
            raise Malformed("not a frame of SPDY/3.1")
        stream = struct.unpack(">I", body[:4])[0]
        if kind != SYN_STREAM:
            return Frame(kind, stream & 0x7FFFFFFF if kind != PING else stream, flags, body[4:])
        return Frame(kind, stream & 0x7FFFFFFF, flags, headers=self._headers(body[10:]))

    def _headers(self, block: bytes) -> dict[str, str]:
        try:
            plain = self._inflate.decompress(block, MOST_HEADERS)
            count, at, words = struct.unpack(">I", plain[:4])[0], 4, list[str]()
            for _ in range(2 * count):
                size = struct.unpack(">I", plain[at : at + 4])[0]
                words.append(plain[at + 4 : at + 4 + size].decode())
                at += 4 + size
        except (zlib.error, struct.error, UnicodeDecodeError) as e:
            raise Malformed(f"headers that cannot be read: {e}") from e
        if at > len(plain) or self._inflate.unconsumed_tail:
            raise Malformed("headers that cannot be read")
        return dict(zip(words[::2], words[1::2], strict=True))


class Writer:
    """Frames become bytes; headers are compressed in the order in which they are sent."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def reply(self, stream: int) -> bytes:
        """A stream is taken."""
        block = self._deflate.compress(struct.pack(">I", 0)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return _control(SYN_REPLY, struct.pack(">I", stream) + block)

    def open(self, stream: int, headers: dict[str, str]) -> bytes:
        """A new stream, as clients begin them."""
        plain = struct.pack(">I", len(headers))
        for word in [word for pair in headers.items() for word in pair]:
            plain += struct.pack(">I", len(word)) + word.encode()
        block = self._deflate.compress(plain) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return _control(SYN_STREAM, struct.pack(">IIH", stream, 0, 0) + block)


def _control(kind: int, body: bytes) -> bytes:
    return struct.pack(">II", 1 << 31 | VERSION << 16 | kind, len(body)) + body


def data(stream: int, content: bytes, end: bool = False) -> bytes:
    return struct.pack(">II", stream, (FIN if end else 0) << 24 | len(content)) + content


def reset(stream: int) -> bytes:
    return _control(RST_STREAM, struct.pack(">II", stream, CANCEL))


def ping(number: int) -> bytes:
    return _control(PING, struct.pack(">I", number))
