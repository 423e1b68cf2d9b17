"""The record of a job: what agents and journals keep of it, enough to go on from."""

from __future__ import annotations

import msgspec

from onward.core.job import Job

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Job)


def record_of(job: Job) -> bytes:
    return _encoder.encode(job)


def job_of(record: bytes) -> Job | None:
    """None: it cannot be read."""
    try:
        return _decoder.decode(record)
    except msgspec.MsgspecError:
        return None
