"""SPDY frames: read in any pieces, and refused when they are none."""

from __future__ import annotations

import random

import pytest

from onward.local.node import spdy

HEADERS = {"streamtype": "data", "port": "8080", "requestid": "0"}


def _conversation() -> bytes:
    writer = spdy.Writer()
    parts = [writer.open(number, {**HEADERS, "requestid": str(number)}) for number in (1, 3, 5)]
    return b"".join([*parts, spdy.data(3, b"hello"), spdy.data(3, b"", end=True), spdy.ping(1), spdy.reset(5)])


def test_frames_are_the_same_in_whatever_pieces_they_come() -> None:
    whole = spdy.Reader().feed(_conversation())
    assert [frame.kind for frame in whole] == [spdy.SYN_STREAM] * 3 + [0, 0, spdy.PING, spdy.RST_STREAM]
    assert whole[1].headers == {**HEADERS, "requestid": "3"}
    assert (whole[3].stream, whole[3].data, whole[4].flags) == (3, b"hello", spdy.FIN)
    reader, bytewise = spdy.Reader(), _conversation()
    assert [frame for byte in bytewise for frame in reader.feed(bytes([byte]))] == whole


def test_rubbish_is_refused_or_waited_for_and_never_anything_else() -> None:
    with pytest.raises(spdy.Malformed, match="SPDY"):
        spdy.Reader().feed(b"\x80\x02\x00\x01\x00\x00\x00\x0a" + b"\0" * 10)  # another version
    bomb = spdy.Writer().open(1, {"a": "x" * 200_000})
    with pytest.raises(spdy.Malformed, match="headers"):
        spdy.Reader().feed(bomb)
    chance = random.Random(7)
    for _ in range(2000):
        broken = bytearray(_conversation())
        for _ in range(chance.randrange(1, 6)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        try:
            spdy.Reader().feed(bytes(broken))
        except spdy.Malformed:
            pass
