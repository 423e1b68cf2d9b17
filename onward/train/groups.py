"""All groups of this process: the generation they belong to, how they leave it, and how they connect in the next."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.distributed as dist

from onward.errors import Unwind
from onward.log import get_logger
from onward.train.backends import ALL, Backend
from onward.train.devicetime import DeviceTime
from onward.train.generation import Generation
from onward.train.waits import Waits

if TYPE_CHECKING:
    from onward.train.group import Group
    from onward.train.work import Entry, GroupWork, OutsideStep

log = get_logger("onward.train")
WATCH_S = 0.05  # how often operations on a device are looked at while nobody waits for them


class Made(NamedTuple):
    """Groups that are connected, and the generation that is not there yet."""

    generation: Generation
    inner: dict[Group, dict[str, tuple[Backend, Any]]]


class Groups:
    """All groups of this process and the generation they belong to. One per process."""

    def __init__(self, store: dist.Store, address: str, timeout_s: float) -> None:
        self.store = store
        self.address = address
        self.timeout_s = timeout_s
        self.generation = Generation(0)
        self.alone = False  # loop-back: a spare, or a rehearsal
        self.backends: tuple[Backend, ...] = (ALL["gloo"],)
        self.gated = False  # in a step: what is on the device is looked at before it counts
        self.accelerated = False
        self.devices: list[Any] = []
        self.present: frozenset[int] = frozenset()  # ranks of the generation; empty: all
        self.as_whole = False  # the set-up runs without some ranks, and makes its groups for all
        self.members: list[Group] = []
        self.before_launch: Callable[[Group, str, Any], Any] | None = None
        self.on_complete: Callable[[Generation, float], None] | None = None
        self.on_unwind: Callable[[str], None] | None = None
        self.outside: OutsideStep | None = None  # set while a failed operation is to be launched again
        self._graveyard: list[tuple[Generation, list[Any]]] = []
        self.skip_next = False  # injected: leave out the next collective
        self.tap: Callable[[str], Entry | None] | None = None  # somebody follows this rank
        self.told: Callable[[str, Any], bool] | None = None  # this process follows: results come from another
        self.waits = Waits()
        self.device_time = DeviceTime()
        self._watching = False

    @property
    def device_backend(self) -> Backend | None:
        """The one whose operations end later than they seem to, if the run has such a one."""
        return self.backends[-1] if self.backends[-1].late else None

    def open(self, number: int, members: Sequence[int] = (), made: Made | None = None) -> None:
        """Leave the current generation for `number` and connect every group anew, among `members` (none: all).

        `made`: the groups that are connected already.
        """
        self.present, self.as_whole = frozenset(members), False
        old = self.generation
        generation = made.generation if made is not None else Generation(number)
        generation.number = number
        inners = [g.detach() for g in self.members]
        self._graveyard.append((old, inners))
        self.generation = generation
        del inners, old
        if self.device_backend is not None:
            self._bury()  # what a device's group holds may be needed for the next one
        self.alone = False
        for group in self.members:
            if made is not None and group in made.inner:
                group.adopt(made.inner[group])
            else:
                group.attach(generation)

    def drop(self, made: Made) -> None:
        """What was connected for a generation that never came."""
        self._graveyard.append((made.generation, [made.inner]))

    def drain(self, generation: Generation, everything: bool = False) -> bool:
        """Wait until all operations of `generation` have really ended; False when one of them has no result.

        `everything`: and what else stands in the current stream.
        """
        backend = self.device_backend
        self.device_time.surfaced()
        if backend is not None and (generation.queue or everything) and not generation.broken:
            generation.queue.wait(backend, lambda: generation.broken)
            self._note(generation, generation.oldest())
        return not generation.broken

    def finish(self, generation: Generation) -> bool:
        """The same, and for those that the script has launched and not waited for: before an update, and at the end
        of a block, nothing that belongs to the block may still fail."""
        for work in generation.under_way():
            if not work.between_two:  # which may be answered in a later block only
                work.linger()
        return self.drain(generation)

    def settle(self) -> None:
        """At the fence, after the abort: wait until nothing of the generation runs on the device any more.

        There is no deadline here. The manager has one for reaching the fence, and its cure, a new process, is the only
        one for a device that does not become quiet.
        """
        backend, generation = self.device_backend, self.generation
        if backend is None or self.alone:
            return
        while backend.slow_release and generation.aborting:
            time.sleep(0.001)
        generation.queue.wait(backend, lambda: False)

    def warm(self) -> None:
        """In a spare: have the device's library ready before it is needed."""
        if self.device_backend is None:
            return
        try:
            self.device_backend.warm(self.devices[0])
        except RuntimeError as e:
            log.info("%s could not be warmed up: %s", self.device_backend.name, e)

    def _watch(self) -> None:
        """A thread that notes the end of operations on the device, and their errors, while nobody waits for them."""
        while True:
            time.sleep(WATCH_S)
            generation, backend = self.generation, self.device_backend
            if backend is None or not generation.queue or generation.failed:
                continue
            try:
                if generation.queue.look(backend):
                    self._note(generation, generation.oldest())
            except RuntimeError as e:
                generation.fail(str(e))

    def watch(self) -> None:
        if not self._watching:
            self._watching = True
            threading.Thread(target=self._watch, name="onward-watch", daemon=True).start()

    def bury(self) -> None:
        """Drop the groups of past generations, except where an operation is still inside. Takes milliseconds each, so
        it is done when the job trains again, and aside."""
        if self._graveyard:
            threading.Thread(target=self._bury, name="onward-bury", daemon=True).start()

    def _bury(self) -> None:
        graves, self._graveyard = self._graveyard, []
        self._graveyard += [grave for grave in graves if grave[0].stuck]

    def completed(self, generation: Generation, work: GroupWork) -> None:
        oldest = generation.remove(work)
        if not oldest:
            self.waits.ended()
        self._note(generation, oldest)

    def _note(self, generation: Generation, oldest: float) -> None:
        if generation is self.generation and self.on_complete is not None:
            self.on_complete(generation, oldest)

    def outside_step(self, group: Group) -> OutsideStep | None:
        """How to go on when an operation of `group` fails now: None means back to the fence."""
        return self.outside if group.over_world else None

    def unwind(self, generation: Generation) -> None:
        """Leave the user's code: the operation that it waited for will not come."""
        if self.on_unwind is not None:
            self.on_unwind(generation.failed)
        raise Unwind(generation.failed)
