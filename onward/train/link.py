"""The rank's connection to its agent: one thread that listens, so that news arrives while user code computes."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

from onward.errors import WireError
from onward.wire.frames import FrameReader, decode, greet_server_blocking, pack
from onward.wire.messages import (
    Hello,
    Inject,
    Injection,
    Plan,
    RankOrder,
    StoreReply,
    StoreRequest,
    Welcome,
    encoder,
    to_rank,
)
from onward.wire.page import Page

BEAT_S = 0.1
UNASKED = 0  # number of a request whose answer is left aside


class Interrupted(Exception):
    """A newer generation was ordered while waiting for an answer."""


class Link:
    """Sends reports, receives orders, and beats the status page. `on_pause` runs in the listening thread."""

    def __init__(self, path: str, token: bytes, process: int) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.connect(path)
        greet_server_blocking(self._sock, token)
        self._send_lock = threading.Lock()
        self._changed = threading.Condition()
        self._replies: dict[int, StoreReply | None] = {}
        self._next_id = 0
        self._reader = FrameReader()
        self.order: RankOrder | None = None
        self.called_softly = 0  # the last generation for which a pause was to wait for the end of the step
        self.injections: list[Injection] = []
        self.on_pause: Callable[[RankOrder], None] | None = None
        self.page: Page | None = None
        self.send(Hello(process=process, pid=os.getpid()))
        self.welcome = self._first()

    def _first(self) -> Welcome:
        welcome: Welcome | None = None
        while welcome is None:
            for body in self._receive():  # to the last: an order may have come with it
                message = decode(to_rank, body)
                if isinstance(message, Welcome):
                    welcome = message
                else:
                    self._take(message)
        return welcome

    def start(self, page: Page, on_pause: Callable[[RankOrder], None]) -> None:
        self.page, self.on_pause = page, on_pause
        page.touch("beat_ns")
        threading.Thread(target=self._listen, name="onward-link", daemon=True).start()

    def send(self, message: object) -> None:
        data = pack(encoder, message)
        with self._send_lock:
            self._sock.sendall(data)

    # ------------------------------------------------------------------------------------------ listening

    def _receive(self) -> list[bytes]:
        data = self._sock.recv(1 << 20)
        if not data:
            raise WireError("the agent closed the connection")
        return self._reader.feed(data)

    def _listen(self) -> None:
        assert self.page is not None
        poll = select.poll()  # not select(): a training process may hold more than 1024 descriptors
        poll.register(self._sock, select.POLLIN)
        try:
            while True:
                self.page.touch("beat_ns")
                if not poll.poll(BEAT_S * 1000):
                    continue
                for body in self._receive():
                    self._take(decode(to_rank, body))
        except (WireError, OSError):
            # Without its agent a rank has nobody to answer to: the launcher is gone, and so must we be.
            os._exit(70)

    def _take(self, message: object) -> None:
        with self._changed:
            match message:
                case RankOrder():
                    if self.order is None or _rank_of(message) >= _rank_of(self.order):
                        self.order = message
                    if message.want == "pause" and message.soft:
                        self.called_softly = max(self.called_softly, message.generation)
                case StoreReply():
                    if message.id in self._replies:
                        self._replies[message.id] = message
                case Inject():
                    self.injections.append(message.injection)
                case _:
                    pass
            self._changed.notify_all()
        if isinstance(message, RankOrder):
            self._at_once(message)

    def _at_once(self, order: RankOrder) -> None:
        if order.want == "pause" and not order.soft and self.on_pause is not None:
            self.on_pause(order)

    # ------------------------------------------------------------------------------------------ waiting

    def wait_order(self, test: Callable[[RankOrder], bool], timeout_s: float | None = None) -> RankOrder | None:
        """The latest order once it satisfies `test`; None on timeout."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while self.order is None or not test(self.order):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(left if left is not None else 1.0)
            return self.order

    def look_again(self) -> None:
        """What somebody waits for may depend on more than orders."""
        with self._changed:
            self._changed.notify_all()

    def wait_newer(self, generation: int) -> RankOrder:
        """The first order of a generation after `generation`."""
        order = self.wait_order(lambda o: o.generation > generation)
        assert order is not None
        return order

    def wait_change(self, last: RankOrder) -> RankOrder:
        """The first order that wants something else than `last`."""
        order = self.wait_order(lambda o: o.generation > last.generation or o.want != last.want)
        assert order is not None
        return order

    def _is_soft(self) -> bool:
        return self.order is not None and self.order.want == "pause" and self.order.soft

    def newer_than(self, generation: int) -> bool:
        order = self.order
        return order is not None and order.generation > generation

    def ask(
        self, generation: int, op: str, key: str, timeout_s: float, patient: bool = False, **fields: object
    ) -> StoreReply:
        """A store operation, answered by whoever keeps the store of `generation`.

        `patient`: it belongs to the end of a step, and a pause that waits for that does not interrupt it.
        """
        return self.ask_each(generation, op, [key], timeout_s, patient, **fields)[0]

    def ask_each(
        self, generation: int, op: str, keys: list[str], timeout_s: float, patient: bool = False, **fields: object
    ) -> list[StoreReply]:
        """The same for several keys, all asked at once: one round trip, whatever their number."""

        def request(key: str) -> Callable[[int], object]:
            place: dict[str, Any] = {"generation": generation, "op": op, "key": key, **fields}
            return lambda number: StoreRequest(id=number, **place)

        questions = [(request(key), f"{op} {key} of generation {generation}") for key in keys]
        return self._ask(questions, generation, timeout_s, patient)

    def tell(self, generation: int, op: Literal["set"], key: str, **fields: Any) -> None:
        """A store operation whose answer nobody waits for."""
        self.send(StoreRequest(id=UNASKED, generation=generation, op=op, key=key, **fields))

    def propose(self, directory: str, every: int, keep: int, fresh: bool, timeout_s: float) -> str:
        """Tell the agent where checkpoints are to go; its objection, if it has one."""
        generation = self.order.generation if self.order is not None else 0

        def request(number: int) -> Plan:
            return Plan(id=number, dir=directory, every=every, keep=keep, fresh=fresh)

        return self._ask([(request, f"the directory {directory}")], generation, timeout_s)[0].error

    def _ask(
        self,
        questions: list[tuple[Callable[[int], object], str]],
        generation: int,
        timeout_s: float,
        patient: bool = False,
    ) -> list[StoreReply]:
        with self._changed:
            numbers = range(self._next_id + 1, self._next_id + 1 + len(questions))
            self._next_id += len(questions)
            self._replies.update(dict.fromkeys(numbers))
        deadline = time.monotonic() + timeout_s
        try:
            for number, (request, _) in zip(numbers, questions, strict=True):
                self.send(request(number))
            answers = zip(numbers, questions, strict=True)
            limit = f"in {timeout_s:g} s"
            return [self._reply(n, generation, f"{what} {limit}", deadline, patient) for n, (_, what) in answers]
        finally:
            with self._changed:
                for number in numbers:
                    self._replies.pop(number, None)

    def _reply(self, number: int, generation: int, what: str, deadline: float, patient: bool) -> StoreReply:
        with self._changed:
            while True:
                reply = self._replies[number]
                if reply is not None:
                    return reply
                if self.newer_than(generation) and not (patient and self._is_soft()):
                    raise Interrupted(f"generation {generation} was left while waiting for {what}")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"no answer for {what}")
                self._changed.wait(left)


def _rank_of(order: RankOrder) -> tuple[int, int]:
    """Orders of one generation follow each other in this sequence; an older one never replaces a newer one."""
    return (order.generation, _SEQUENCE.index(order.want))


_SEQUENCE = ("start", "pause", "save", "form", "run", "finish", "leave", "stop")
