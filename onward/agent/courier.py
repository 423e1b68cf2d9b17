"""Takes requests to the manager and brings back its answer, also when the manager is replaced on the way."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from onward.core.intake import Notice
from onward.wire.messages import FaultAnswer, FaultRequest

AGAIN_S = 0.3  # a request that was lost with its manager is sent again; it is carried out once
PATIENCE_S = 8.0


class Courier:
    """`send` tells whether there is somebody to send to."""

    def __init__(self, send: Callable[[object], bool]) -> None:
        self._send = send
        self._waiting: dict[str, asyncio.Future[FaultAnswer]] = {}

    async def ask(self, notice: Notice) -> FaultAnswer | None:
        """The manager's answer; None when there was none in time."""
        request = FaultRequest(uid=secrets.token_hex(8), notice=notice)
        answer: asyncio.Future[FaultAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[request.uid] = answer
        try:
            for _ in range(round(PATIENCE_S / AGAIN_S)):
                self._send(request)
                done, _ = await asyncio.wait([answer], timeout=AGAIN_S)
                if done:
                    return answer.result()
            return None
        finally:
            del self._waiting[request.uid]

    def on_answer(self, answer: FaultAnswer) -> None:
        waiting = self._waiting.get(answer.uid)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)
