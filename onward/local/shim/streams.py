"""What one run of a container reads and writes: pipes, or a terminal (`tty: true`).

What it writes goes to its log and to everybody who is attached; what they type goes to its standard input, where it has
one (`stdin: true`; without, that is /dev/null). As with container runtimes, nobody who is attached misses anything:
the container is held back for one who does not keep up. One who takes nothing at all for a while is left.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import struct
import termios
import time
from typing import Any

from onward.local.shim.logfile import LogFile
from onward.local.shim.loop import Loop

# Messages to and from a guest: their length, then this byte, as on the WebSocket of `kubectl attach`, then the text.
STDIN, STDOUT, STDERR, RESIZE, CLOSE = 0, 1, 2, 4, 255
HEAD = struct.Struct(">I")
LONGEST = 1 << 22
BLOCK = 1 << 16
AHEAD = 1 << 20  # what a guest may have to read still before the container waits for it
TYPED = 1 << 16  # the same for what the container has to read still
SLOW_S = 30.0
DRAIN_READS = 64  # of a container that has ended: more than any pipe holds, unless somebody we did not find writes on


class Streams:
    """`child` are the three files for the container; they are closed here once it has them (`started`)."""

    def __init__(self, loop: Loop, log_path: str, spec: dict[str, Any]) -> None:
        self._loop = loop
        self._log: LogFile | None = LogFile(log_path)
        self.tty, self._once = bool(spec.get("tty")), bool(spec.get("stdin_once"))
        self._open: dict[int, str] = {}  # files that we read
        self._input = -1
        self._typed, self._typed_all = bytearray(), False
        self._guests: list[Guest] = []
        self._held_back = False
        if self.tty:
            terminal, slave = os.openpty()
            self.child = (slave, slave, slave)
            self._open[terminal] = "stdout"
            if spec.get("uid") is not None:
                os.fchown(slave, spec["uid"], -1)
            if spec.get("stdin"):
                self._input = os.dup(terminal)
        else:
            (out, out_end), (err, err_end) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
            self._open |= {out: "stdout", err: "stderr"}
            if spec.get("stdin"):
                end, self._input = os.pipe2(os.O_CLOEXEC)
            else:
                end = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
            self.child = (end, out_end, err_end)
        for fd in [*self._open, *([self._input] if self._input >= 0 else [])]:
            os.set_blocking(fd, False)

    @property
    def takes_input(self) -> bool:
        return self._input >= 0 and not self._typed_all

    def started(self) -> None:
        self._close_child()
        self._read_all()

    def _close_child(self) -> None:
        for fd in set(self.child):
            os.close(fd)

    def abandon(self) -> None:
        """The container could not be started."""
        self._close_child()
        for fd in list(self._open):
            self._close(fd)
        self.end()

    # What it writes

    def _read_all(self) -> None:
        for fd in self._open:
            self._loop.on_readable(fd, lambda fd=fd: self._read(fd))  # type: ignore[misc]

    def _read(self, fd: int) -> None:
        try:
            data = os.read(fd, BLOCK)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # a terminal that nobody has open any more
        if not data:
            self._close(fd)
            return
        stream = self._open[fd]
        if self._log is not None:
            self._log.feed(stream, data)
        for guest in list(self._guests):
            guest.show(stream, data)
        self._hold_back()

    def _hold_back(self) -> None:
        """Read no more while a guest has much to read still."""
        if self._held_back or not any(guest.behind for guest in self._guests):
            return
        self._held_back = True
        for fd in self._open:
            self._loop.forget(fd)
        self._loop.after(SLOW_S, self._look_for_slow)

    def _look_for_slow(self) -> None:
        if not self._held_back:
            return
        for guest in [g for g in self._guests if g.behind and time.monotonic() - g.moved_at >= SLOW_S]:
            guest.leave()
        if self._held_back:
            self._loop.after(SLOW_S, self._look_for_slow)

    def go_on(self) -> None:
        """A guest has read, or left."""
        if self._held_back and not any(guest.behind for guest in self._guests):
            self._held_back = False
            self._read_all()

    def _close(self, fd: int) -> None:
        if self._log is not None:
            self._log.flush(self._open[fd])
        del self._open[fd]
        self._loop.forget(fd)
        os.close(fd)

    def end(self) -> None:
        """The container has ended. What it left is read; guests are hung up on when they have it."""
        for fd in list(self._open):
            for _ in range(DRAIN_READS):
                if fd in self._open and _readable(fd):
                    self._read(fd)
            if fd in self._open:
                self._close(fd)
        self._held_back = False
        if self._log is not None:
            self._log.close()
            self._log = None
        self._close_input()
        for guest in list(self._guests):
            guest.finish()

    # What it reads

    def attach(self, connection: socket.socket, asked: dict[str, Any]) -> None:
        self._guests.append(Guest(self._loop, self, connection, asked))

    def type(self, data: bytes) -> bool:
        """False: that is enough for now; `guest.listen` is called when there is room again."""
        if self.takes_input:
            self._typed += data
            self._write_input()
        return len(self._typed) < TYPED

    def _write_input(self) -> None:
        try:
            while self._typed:
                del self._typed[: os.write(self._input, self._typed[:BLOCK])]
        except BlockingIOError:
            self._loop.on_writable(self._input, self._write_input)
            return
        except OSError:
            self._typed.clear()  # it reads no more
        self._loop.forget(self._input)
        if self._typed_all:
            self._close_input()
        for guest in self._guests:
            guest.listen()

    def typed_all(self, guest: Guest) -> None:
        """A guest that could type has come to the end of its input. With `stdinOnce` that ends the container's, too.

        Otherwise others may come and type on, and the guest has seen enough. So it is in containerd.
        """
        if self._once and not self.tty:
            self._typed_all = True
            if not self._typed:
                self._close_input()
        else:
            guest.finish()

    def _close_input(self) -> None:
        if self._input >= 0:
            self._loop.forget(self._input)
            os.close(self._input)
            self._input, self._typed_all = -1, True
            self._typed.clear()

    def resize(self, rows: int, columns: int) -> None:
        if self.tty and self._open:
            fcntl.ioctl(next(iter(self._open)), termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def left(self, guest: Guest) -> None:
        self._guests.remove(guest)
        self.go_on()


class Guest:
    """One who is attached: the connection of a node's agent."""

    def __init__(self, loop: Loop, streams: Streams, connection: socket.socket, asked: dict[str, Any]) -> None:
        self._loop, self._streams, self._connection = loop, streams, connection
        self._types = bool(asked.get("stdin")) and streams.takes_input
        self._sees = {name for name in ("stdout", "stderr") if asked.get(name)}
        self._waiting, self._received = bytearray(), bytearray()
        self._finishing = self._gone = self._listens = False
        self.moved_at = time.monotonic()
        self._fd = connection.fileno()
        self._send(json.dumps({"attached": True, "stdin": self._types}).encode() + b"\n")
        self.listen()

    @property
    def behind(self) -> bool:
        return len(self._waiting) > AHEAD and not self._finishing

    def show(self, stream: str, data: bytes) -> None:
        if stream in self._sees and not self._finishing and not self._gone:
            channel = STDOUT if stream == "stdout" else STDERR
            self._send(HEAD.pack(len(data) + 1) + bytes([channel]) + data)

    def _send(self, data: bytes = b"") -> None:
        self._waiting += data
        try:
            while self._waiting:
                del self._waiting[: self._connection.send(self._waiting[:BLOCK])]
                self.moved_at = time.monotonic()
        except BlockingIOError:
            self._loop.on_writable(self._fd, self._send)
        except OSError:
            self.leave()
            return
        if not self._waiting:
            self._loop.forget(self._fd, reading=False)
            if self._finishing:
                self.leave()
                return
        self._streams.go_on()

    def finish(self) -> None:
        """Hang up when all is sent."""
        self._finishing = True
        if not self._waiting:
            self.leave()

    def leave(self) -> None:
        if self._gone:
            return
        self._gone = True
        self._loop.forget(self._fd)
        self._connection.close()
        self._streams.left(self)
        self._end_of_input()

    def _end_of_input(self) -> None:
        if self._types:
            self._types = False
            self._streams.typed_all(self)

    # What comes from it

    def listen(self) -> None:
        if not self._gone and not self._listens:
            self._listens = True
            self._loop.on_readable(self._fd, self._read)

    def _read(self) -> None:
        try:
            data = self._connection.recv(BLOCK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.leave()
            return
        self._received += data
        while len(self._received) >= HEAD.size and not self._gone:
            (length,) = HEAD.unpack_from(self._received)
            if not 0 < length <= LONGEST:
                self.leave()
                return
            if len(self._received) < HEAD.size + length:
                break
            message = bytes(self._received[HEAD.size : HEAD.size + length])
            del self._received[: HEAD.size + length]
            self._heard(message[0], message[1:])

    def _heard(self, channel: int, data: bytes) -> None:
        if channel == STDIN and self._types and not self._streams.type(data):
            self._listens = False
            self._loop.forget(self._fd, writing=False)
        elif channel == CLOSE and data[:1] == bytes([STDIN]):
            self._end_of_input()
        elif channel == RESIZE:
            try:
                size = json.loads(data)
                self._streams.resize(int(size["Height"]), int(size["Width"]))
            except (ValueError, TypeError, KeyError, OSError, OverflowError, RecursionError, struct.error):
                pass  # no size of a terminal


def _readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
