"""`kubectl exec`: a command beside a running container, over a WebSocket with a channel per stream.

The first byte of each message is the channel: 0 stdin, 1 stdout, 2 stderr, 3 how it ended, 4 the size of the terminal,
255 (since v5) the end of a stream. The command is started by a helper process that joins the container's namespaces.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import signal
import struct
import sys
import termios
from pathlib import Path

from aiohttp import WSMsgType, web

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
BLOCK = 32 * 1024


async def serve(request: web.Request, place: Path, container: str, pid: int, command: list[str]) -> web.StreamResponse:
    query = request.query
    tty = query.get("tty") in ("true", "1")
    socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=1 << 22)
    await socket.prepare(request)
    session = _Session(socket, tty, query.get("stdin") in ("true", "1"))
    try:
        code = await session.run(_helper(place, container, pid, command))
        await send(socket, ERROR, json.dumps(status_of(code)).encode())
    finally:
        session.end()
        await socket.close()
    return socket


def _helper(place: Path, container: str, pid: int, command: list[str]) -> list[str]:
    import onward

    root = str(Path(onward.__file__).resolve().parents[1])
    code = f"import sys; sys.path.insert(0, {root!r}); from onward.local.shim.enter import main; main()"
    return [sys.executable, "-E", "-S", "-c", code, str(place), container, str(pid), *command]


def status_of(code: int) -> dict[str, object]:
    """A metav1.Status; clients read the exit code out of its causes."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    number = 128 - code if code < 0 else code
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {number}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(number)}]},
    }


async def send(socket: web.WebSocketResponse, channel: int, data: bytes) -> None:
    if not socket.closed:
        try:
            await socket.send_bytes(bytes([channel]) + data)
        except (ConnectionError, RuntimeError):
            pass  # the other side has gone


class _Session:
    """One command and its streams."""

    def __init__(self, socket: web.WebSocketResponse, tty: bool, stdin: bool) -> None:
        self._socket, self._tty, self._stdin = socket, tty, stdin
        self._process: asyncio.subprocess.Process | None = None
        self._terminal = -1
        self._input: asyncio.StreamWriter | None = None

    async def run(self, command: list[str]) -> int:
        if self._tty:
            await self._start_terminal(command)
            pumps = [self._pump_terminal()]
        else:
            pipe = asyncio.subprocess.PIPE
            none = asyncio.subprocess.DEVNULL
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=pipe if self._stdin else none, stdout=pipe, stderr=pipe, start_new_session=True
            )
            self._input = self._process.stdin
            assert self._process.stdout is not None
            assert self._process.stderr is not None
            pumps = [self._pump(self._process.stdout, STDOUT), self._pump(self._process.stderr, STDERR)]
        tasks = [asyncio.ensure_future(p) for p in pumps]
        listener = asyncio.ensure_future(self._listen())
        assert self._process is not None
        ended = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait({ended, listener}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():  # the client has gone: so does the command
                self.end()
            code = await ended
            await asyncio.wait(tasks, timeout=5.0)
            return code
        finally:
            for task in [*tasks, listener]:
                task.cancel()
            await asyncio.gather(*tasks, listener, return_exceptions=True)

    async def _start_terminal(self, command: list[str]) -> None:
        master, slave = pty.openpty()
        self._terminal = master
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                preexec_fn=lambda: _own_terminal(slave),
            )
        finally:
            os.close(slave)

    async def _pump(self, reader: asyncio.StreamReader, channel: int) -> None:
        while data := await reader.read(BLOCK):
            await send(self._socket, channel, data)

    async def _pump_terminal(self) -> None:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[bytes] = asyncio.Queue()

        def readable() -> None:
            try:
                data = os.read(self._terminal, BLOCK)
            except OSError:  # the other end is closed
                data = b""
            if not data:
                loop.remove_reader(self._terminal)
            queue.put_nowait(data)

        loop.add_reader(self._terminal, readable)
        try:
            while data := await queue.get():
                await send(self._socket, STDOUT, data)
        finally:
            loop.remove_reader(self._terminal)

    async def _listen(self) -> None:
        async for message in self._socket:
            if message.type != WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel == STDIN:
                await self._write(data)
            elif channel == RESIZE and self._terminal >= 0:
                self._resize(data)
            elif channel == CLOSE and data[:1] == b"\0" and self._input is not None:
                self._input.close()

    async def _write(self, data: bytes) -> None:
        try:
            if self._terminal >= 0:
                os.write(self._terminal, data)
            elif self._input is not None and not self._input.is_closing():
                self._input.write(data)
                await self._input.drain()
        except OSError:
            pass  # the command reads no more

    def _resize(self, data: bytes) -> None:
        try:
            size = json.loads(data)
            rows, columns = int(size["Height"]), int(size["Width"])
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        except (ValueError, KeyError, OSError, struct.error):
            pass

    def end(self) -> None:
        if self._process is not None and self._process.returncode is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except OSError:
                pass
        if self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1


def _own_terminal(fd: int) -> None:
    """In the child: a session of its own, with this as its terminal."""
    os.setsid()
    fcntl.ioctl(fd, termios.TIOCSCTTY, 0)
