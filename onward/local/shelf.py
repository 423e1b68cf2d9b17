"""A shelf for open sockets: the supervisor holds a second hand on those of the network process.

While that process is started anew, nothing is refused: packets and connections wait in the sockets, and the new process
takes them from the shelf and goes on. One packet each way for each question, over a unix socket in the state directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from onward.log import get_logger

log = get_logger("local.shelf")

NAME = "shelf.sock"
PACKET = 4096
ANSWER_S = 1.0


class Shelf:
    """The supervisor's side. `selector` calls what is registered with it."""

    def __init__(self, state: Path, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._kept: dict[str, int] = {}
        self._unclaimed: set[str] = set()  # kept for a process that is gone, and not asked for since
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.setblocking(False)
        with _short(state / "run") as place:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{place}/{NAME}")
            self._server.bind(f"{place}/{NAME}")
        self._server.listen(4)
        selector.register(self._server, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            client, _ = self._server.accept()
            client.setblocking(False)
            self._unclaimed = set(self._kept)
            self._selector.register(client, selectors.EVENT_READ, lambda: self._answer(client))

    def _answer(self, client: socket.socket) -> None:
        files: list[int] = []
        try:
            data, files, _, _ = socket.recv_fds(client, PACKET, 4, socket.MSG_CMSG_CLOEXEC)
            if not data:
                raise ConnectionError("it has gone")
            self._do(client, json.loads(data), files)
        except BlockingIOError:
            pass
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self._selector.unregister(client)  # one that does not read answers, or asks for what there is not, too
            client.close()
        finally:
            for fd in files:
                os.close(fd)

    def _do(self, client: socket.socket, asked: dict[str, Any], files: list[int]) -> None:
        match asked["op"]:
            case "keep":
                self._drop(asked["name"])
                if files:  # else we have as many open as we may
                    self._kept[asked["name"]] = files.pop(0)
            case "take":
                fd = self._kept.get(asked["name"], -1)
                self._unclaimed.discard(asked["name"])
                socket.send_fds(client, [b"here" if fd >= 0 else b"none"], [fd] if fd >= 0 else [])
                return
            case "drop":
                self._drop(asked["name"])
            case "complete":
                for name in self._unclaimed & set(self._kept):
                    self._drop(name)
        client.send(b"done")

    def _drop(self, name: str) -> None:
        self._unclaimed.discard(name)
        fd = self._kept.pop(name, -1)
        if fd >= 0:
            os.close(fd)


class Hand:
    """The network process's side: sockets that it has, and keeps there. Everything works without a shelf, too."""

    def __init__(self, state: Path) -> None:
        self._place = state / "run"
        self._shelf: socket.socket | None = None
        self._ours: dict[str, socket.socket] = {}
        self._reach()

    def get(self, name: str, make: Callable[[], socket.socket]) -> socket.socket:
        """The socket of that name from the shelf; else a new one, which is put there."""
        files = self._ask({"op": "take", "name": name})
        if files:
            found = socket.socket(fileno=files[0])
            found.setblocking(False)
        else:
            found = make()
            self._ask({"op": "keep", "name": name}, found.fileno())
        self._ours[name] = found
        return found

    def let_go(self, name: str) -> None:
        self._ours.pop(name, None)
        self._ask({"op": "drop", "name": name})

    def complete(self) -> None:
        """All that is wanted is open: what else is on the shelf may go. To be said again and again: the supervisor may
        be a new one, with an empty shelf."""
        self._reach()
        self._ask({"op": "complete"})

    def _reach(self) -> None:
        if self._shelf is not None:
            poll = select.poll()
            poll.register(self._shelf, select.POLLIN)
            if not poll.poll(0):
                return
            self._lose()  # nothing comes unasked but the end
        shelf = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        shelf.settimeout(ANSWER_S)
        try:
            with _short(self._place) as place:
                shelf.connect(f"{place}/{NAME}")
        except OSError:
            shelf.close()
            return
        self._shelf = shelf
        for name, ours in self._ours.items():
            self._ask({"op": "keep", "name": name}, ours.fileno())

    def _ask(self, what: dict[str, str], fd: int = -1) -> list[int]:
        if self._shelf is None:
            return []
        try:
            socket.send_fds(self._shelf, [json.dumps(what).encode()], [fd] if fd >= 0 else [])
            answer, files, _, _ = socket.recv_fds(self._shelf, PACKET, 1, socket.MSG_CMSG_CLOEXEC)
            if answer:
                return files
            raise ConnectionError("the supervisor has gone")
        except OSError as e:
            log.warning("sockets are not kept for now: %s", e)
            self._lose()
            return []

    def _lose(self) -> None:
        if self._shelf is not None:
            self._shelf.close()
            self._shelf = None


@contextlib.contextmanager
def _short(place: Path) -> Iterator[str]:
    """A path in a socket address is short, so the directory is named by a file descriptor."""
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
