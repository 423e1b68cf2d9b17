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
OUTPUTS = {"stdout": STDOUT, "stderr": STDERR}
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
BLOCK = 32 * 1024
HELD_OPEN_S = 5.0


async def serve(request: web.Request, place: Path, container: str, pid: int, command: list[str]) -> web.StreamResponse:
    query = request.query
    tty = query.get("tty") in ("true", "1")
    socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=1 << 22)
    await socket.prepare(request)
    wanted = {number for name, number in OUTPUTS.items() if query.get(name) in ("true", "1")}
    session = _Session(socket, tty, query.get("stdin") in ("true", "1"), wanted)
    try:
        code = await session.run(_helper(place, container, pid, command, tty))
        await send(socket, ERROR, json.dumps(status_of(code)).encode())
    finally:
        session.end()
        await socket.close()
    return socket


def _helper(place: Path, container: str, pid: int, command: list[str], tty: bool) -> list[str]:
    import onward

    root = str(Path(onward.__file__).resolve().parents[1])
    code = f"import sys; sys.path.insert(0, {root!r}); from onward.local.shim.enter import main; main()"
    return [sys.executable, "-E", "-S", "-c", code, str(place), container, str(pid), "tty" if tty else "", *command]


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
    """One command and its files. They are ours, not asyncio's: that takes a command for running while anybody at all
    has one of its files open.
    """

    def __init__(self, socket: web.WebSocketResponse, tty: bool, stdin: bool, wanted: set[int]) -> None:
        self._socket, self._tty, self._stdin, self._wanted = socket, tty, stdin, wanted
        self._process: asyncio.subprocess.Process | None = None
        self._outputs: dict[int, int] = {}  # file -> channel
        self._input = -1
        self._sent, self._sending = 0, 0

    async def run(self, command: list[str]) -> int:
        files = self._make_files()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=files[0],
                stdout=files[1],
                stderr=files[2],
                start_new_session=not self._tty,
                preexec_fn=(lambda: _own_terminal(files[0])) if self._tty else None,
            )
        finally:
            for fd in set(files):
                os.close(fd)
        tasks = [asyncio.ensure_future(self._pump(fd)) for fd in self._outputs]
        listener = asyncio.ensure_future(self._listen())
        ended = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait({ended, listener}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():  # the client has gone: so does the command
                self._kill()
            code = await ended
            await self._rest(tasks)
            return code
        finally:
            for task in [*tasks, listener]:
                task.cancel()
            await asyncio.gather(*tasks, listener, return_exceptions=True)

    def _make_files(self) -> tuple[int, int, int]:
        """Of the command; the other ends are ours."""
        if self._tty:
            self._input, slave = pty.openpty()
            self._outputs = {self._input: STDOUT}
            files = (slave, slave, slave)
        else:
            (out, out_end), (err, err_end) = os.pipe(), os.pipe()
            self._outputs = {out: STDOUT, err: STDERR}
            if self._stdin:
                end, self._input = os.pipe()
            else:
                end = os.open(os.devnull, os.O_RDONLY)
            files = (end, out_end, err_end)
        for fd in self._ours():
            os.set_blocking(fd, False)
        return files

    def _ours(self) -> set[int]:
        return {*self._outputs, *([self._input] if self._input >= 0 else [])}

    async def _rest(self, tasks: list[asyncio.Task[None]]) -> None:
        """All that the command wrote, however slowly it is read; not what others write who hold its files open."""
        while True:
            before = self._sent
            _, left = await asyncio.wait(tasks, timeout=HELD_OPEN_S)
            if not left or (self._sent == before and not self._sending):
                return

    async def _pump(self, fd: int) -> None:
        while True:
            try:
                data = os.read(fd, BLOCK)
            except BlockingIOError:
                await _ready(fd, reading=True)
                continue
            except OSError:  # a terminal that nobody has open any more
                return
            if not data:
                return
            self._sending += 1
            if self._outputs[fd] in self._wanted:
                await send(self._socket, self._outputs[fd], data)
            self._sending -= 1
            self._sent += 1

    async def _listen(self) -> None:
        async for message in self._socket:
            if message.type != WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel == STDIN:
                await self._write(data)
            elif channel == RESIZE and self._tty:
                self._resize(data)
            elif channel == CLOSE and data[:1] == b"\0" and not self._tty and self._input >= 0:
                os.close(self._input)
                self._input = -1

    async def _write(self, data: bytes) -> None:
        while data and self._input >= 0:
            try:
                data = data[os.write(self._input, data) :]
            except BlockingIOError:
                await _ready(self._input, reading=False)
            except OSError:
                return  # the command reads no more

    def _resize(self, data: bytes) -> None:
        try:
            size = json.loads(data)
            rows, columns = int(size["Height"]), int(size["Width"])
            fcntl.ioctl(self._input, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        except (ValueError, TypeError, KeyError, OSError, OverflowError, RecursionError, struct.error):
            pass  # no size of a terminal

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except OSError:
                pass

    def end(self) -> None:
        """Nobody reads or writes any more."""
        self._kill()
        for fd in self._ours():
            os.close(fd)
        self._outputs, self._input = {}, -1


async def _ready(fd: int, reading: bool) -> None:
    """Until the file has something, or takes something."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    if reading:
        loop.add_reader(fd, ready.set)
    else:
        loop.add_writer(fd, ready.set)
    try:
        await ready.wait()
    finally:
        if reading:
            loop.remove_reader(fd)
        else:
            loop.remove_writer(fd)


def _own_terminal(fd: int) -> None:
    """In the child: a session of its own, with this as its terminal."""
    os.setsid()
    fcntl.ioctl(fd, termios.TIOCSCTTY, 0)
