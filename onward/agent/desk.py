"""Where people's commands arrive: `onward status`, `chaos` and `fault` talk to a running launcher through this."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING

import msgspec

from onward.agent.chaos import OWN_KINDS, RANK_KINDS
from onward.core.intake import Notice
from onward.core.policy import did_you_mean
from onward.errors import WireError
from onward.wire.control import ControlReply, ControlRequest, from_control
from onward.wire.frames import decode, pack, read_frame
from onward.wire.messages import Injection, encoder

if TYPE_CHECKING:
    from onward.agent.launcher import Launcher

SIGNALS = {"kill": signal.SIGKILL, "segv": signal.SIGSEGV, "abort": signal.SIGABRT, "stop": signal.SIGSTOP}
SHOWN_INCIDENTS = 16


class Desk:
    """Answers control requests of one launcher."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    async def serve(
        self, request: ControlRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer until the other side hangs up."""
        with contextlib.suppress(WireError):
            while True:
                reply = self.answer(request)
                if request.op == "fault" and request.notice is not None:
                    reply = await self._pass_on(request.notice)
                writer.write(pack(encoder, reply))
                request = decode(from_control, await read_frame(reader))

    async def _pass_on(self, notice: Notice) -> ControlReply:
        """Published faults are the manager's: this node may not even be the one that it is on."""
        answer = await self._launcher.courier.ask(notice)
        error = "" if answer is not None else "no manager of this job answers at the moment; try again"
        return msgspec.structs.replace(self.answer(ControlRequest(op="status")), error=error, answer=answer)

    def answer(self, request: ControlRequest) -> ControlReply:
        injected: list[int] = []
        error = ""
        if request.op == "inject":
            error = self._refuse(request.injections)
            if not error:
                injected = [self._inject(i) for i in request.injections]
        launcher = self._launcher
        incidents, last_open = launcher.ledger.stories()
        return ControlReply(
            error=error,
            view=launcher.ledger.view(),
            incidents=incidents[-SHOWN_INCIDENTS:],
            open=last_open,
            fired=launcher.witness.fired,
            injected=injected,
        )

    def _refuse(self, injections: list[Injection]) -> str:
        """Why these make no sense here; empty when they do. They came over a socket, so nothing is assumed."""
        world = self._launcher.logic.world_size
        kinds = (*RANK_KINDS, *OWN_KINDS)
        for i in injections:
            if i.kind not in kinds:
                return f"unknown kind {i.kind!r}{did_you_mean(i.kind, kinds)}"
            if i.kind in RANK_KINDS and not 0 <= i.rank < world:
                return f"rank {i.rank} is not one of the {world} ranks"
            if self._outside(i) and (i.kind not in SIGNALS or i.step >= 0):
                can = ", ".join(SIGNALS)
                return f"rank {i.rank} has not called onward.init(), so only {can} work there, and with no step"
        return ""

    def _outside(self, i: Injection) -> bool:
        """The rank has no library inside that could carry this out: it can only be sent a signal."""
        logic = self._launcher.logic
        number = logic.current.get(i.rank)
        if number is None or i.kind not in RANK_KINDS or i.at == "recovery":
            return False
        return not logic.processes[number].attached

    def _inject(self, i: Injection) -> int:
        launcher = self._launcher
        i = msgspec.structs.replace(i, id=launcher.witness.next_id())
        launcher.witness.expect(i)
        if self._outside(i):
            launcher.crew.signal_rank(i.rank, SIGNALS[i.kind], i.id)
        else:
            launcher.inject(i)
        return i.id
