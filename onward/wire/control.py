"""What people ask of a running job, over the socket on which its agent listens to ranks."""

from __future__ import annotations

from typing import Literal

import msgspec

from onward.core.incident import Incident
from onward.core.intake import Notice
from onward.wire.messages import FaultAnswer, Hello, Injection
from onward.wire.view import Fired, JobView


class ControlRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What `onward status`, `chaos` and `fault` ask of a running job. Stands where a rank would say Hello."""

    op: Literal["status", "inject", "fault"]
    injections: list[Injection] = []  # the agent gives them numbers of its own
    notice: Notice | None = None  # for the manager, about published faults


class ControlReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The answer to any ControlRequest: how the job stands, after doing what was asked."""

    error: str  # why it was not done; empty when it was
    view: JobView | None = None
    incidents: list[Incident] = []  # the latest, an open one last
    open: bool = False  # the last of them is not over
    fired: list[Fired] = []
    injected: list[int] = []  # the numbers that were given
    answer: FaultAnswer | None = None  # the manager's, to a notice


first_word = msgspec.msgpack.Decoder(Hello | ControlRequest)
from_control = msgspec.msgpack.Decoder(ControlRequest)
to_control = msgspec.msgpack.Decoder(ControlReply)
