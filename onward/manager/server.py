"""The manager as a process: connections, a clock and a journal around `ManagerLogic`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from pathlib import Path

from onward.errors import WireError
from onward.log import get_logger
from onward.manager.journal import Journal
from onward.manager.logic import ManagerLogic, ManagerSettings
from onward.wire.frames import accept_peer, decode, pack, read_frame
from onward.wire.messages import encoder, from_agent

log = get_logger("onward.manager")
GREETING_S = 5.0
TICK_S = 0.05


class ManagerServer:
    """Serves the agents of one job until the job has ended or everybody is gone."""

    def __init__(self, settings: ManagerSettings, token: bytes, journal: Path | None) -> None:
        self._journal = Journal(journal) if journal is not None else None
        self._logic = ManagerLogic(settings, self._journal.last if self._journal else b"")
        self._token = token
        self._peers: dict[int, asyncio.StreamWriter] = {}
        self._idle_since = time.monotonic()
        self.refused = 0

    @property
    def phase(self) -> str:
        """Where the job stands; empty until all agents have been here."""
        return self._logic.job.phase.value if self._logic.job is not None else ""

    @property
    def connected(self) -> int:
        return len(self._peers)

    async def serve(self, sock: socket.socket, idle_s: float) -> None:
        server = await asyncio.start_server(self._on_connection, sock=sock)
        async with server:
            while True:
                await asyncio.sleep(TICK_S)
                self._logic.think(time.monotonic())
                self._flush()
                if self._peers:
                    self._idle_since = time.monotonic()
                elif time.monotonic() - self._idle_since > idle_s:
                    return

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        node = -1
        try:
            await accept_peer(reader, writer, self._token, GREETING_S)
            while True:
                message = decode(from_agent, await read_frame(reader))
                if node < 0:
                    if not 0 <= message.node < self._logic.settings.nodes:
                        raise WireError(f"node {message.node} is not one of this job")
                    node = message.node
                    self._logic.forget(node)
                    old = self._peers.get(node)
                    self._peers[node] = writer
                    if old is not None:
                        old.close()
                self._logic.on_facts(message, time.monotonic())
                self._flush()
        except WireError as e:
            if node < 0:
                self.refused += 1
                log.warning("a connection was refused: %s", e)
        finally:
            if self._peers.get(node) is writer:
                del self._peers[node]
            writer.close()

    def _flush(self) -> None:
        if self._logic.changed_job and self._journal is not None:
            self._logic.changed_job = False
            if not self._journal.append(self._logic.record()):  # no matter: the agents hold the same record
                log.warning("the journal %s cannot be written; the job goes on without", self._journal.path)
        out, self._logic.out = self._logic.out, []
        for node, message in out:
            data = pack(encoder, message)
            for n, writer in self._peers.items():
                if node is None or n == node:
                    with contextlib.suppress(ConnectionError, RuntimeError):
                        writer.write(data)
