"""`onward/train/transaction.py` and `local.py` with numbers in place of tensors."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from .fabric import MASK, mix
from .unwinding import NotJoined

if TYPE_CHECKING:
    from .ranks import RankProcess

STEADY = 2
HALF = MASK  # what is in memory while an update is being written, or after it was damaged


def first_shared() -> int:
    return mix(1, 1)


def first_local(rank: int) -> int:
    return mix(2, rank)


class Transaction:
    """The state of a process: shared, local, and the copy it can go back to."""

    def __init__(self, process: RankProcess) -> None:
        self._process = process
        self.slots = process.agent.slots.setdefault((process.rank, process.attempt), [(-1, 0), (-1, 0)])
        self._begun = process.agent.begun
        self._where = (process.rank, process.attempt)
        self.step = 0
        self.shared, self.local = first_shared(), first_local(process.rank)
        self.open, self.clean, self.undo = False, True, False
        self.light_at = self.shape = 0
        self.was_damaged = False
        self._copy = HALF
        self._trace: tuple[int, int] = (0, 0)
        self._steady = 0
        self._reset_block()

    def _reset_block(self) -> None:
        self._syncs = 0
        self._gated = self.careful = self._copied = False
        self._published: int | None = None
        self._last_seen: int | None = None
        self._after_gate = 0

    # ------------------------------------------------------------------------------------------ the block

    def first_publish(self) -> Generator[float, None, None]:
        yield from self._publish(self.step)

    def begin(self) -> None:
        self._reset_block()
        self.open, self.clean, self.undo = True, True, False
        self.careful = not self.light_at

    def draw(self) -> None:
        if not self._process.world.scenario.elastic:  # there random numbers belong to the micro-batch
            self.local = mix(self.local, 3)

    def noise(self) -> None:
        self.local = mix(self.local, 5)

    def on_collective(self) -> Generator[float, None, None]:
        if self._gated:
            self._after_gate += 1
        self._syncs += 1
        if self.light_at:
            if self._syncs == self.light_at:
                self._published = self.local
                yield from self._publish(self.step + 1)
        elif not self._gated:
            self._last_seen = self.local

    def gate(self, broken: bool) -> bool:
        if broken:
            return False
        self._gated = True
        if self.light_at and self._published is None:
            self.careful = True
        if self.careful:
            self._copy, self._copied = self.shared, True
        self.clean = False
        return True

    def half_applied(self) -> None:
        self.shared = HALF

    def update(self, before: int, total: int) -> None:
        self.shared = mix(before, total)

    def end(self) -> Generator[float, None, int]:
        vote = 0
        if self.careful or self._published is None:
            self.careful = True
            yield from self._publish(self.step + 1)
            vote = self._learn()
        return vote

    def _learn(self) -> int:
        regular = self._syncs > 0 and self._last_seen == self.local and not self._after_gate
        trace = (self._syncs, int(regular))
        self._steady = self._steady + 1 if regular and trace == self._trace else int(regular)
        self._trace = trace
        return self._syncs if self._steady >= STEADY else 0

    def applied(self) -> None:
        self.step += 1
        self.open, self.clean, self.undo = False, True, self._copied

    def settled(self, agreed_light: int) -> None:
        if agreed_light and not self.light_at:
            self.undo = False
        self.light_at = self.shape = agreed_light

    def go_light(self, shape: int) -> None:
        self.light_at = self.shape = shape

    @property
    def learnt(self) -> int:
        return self._trace[0] if self._trace[1] else 0

    def learn_from(self, syncs: int) -> None:
        self._trace, self._steady = (syncs, int(syncs > 0)), STEADY - 1 if syncs else 0

    # ------------------------------------------------------------------------------------------ local state

    def _publish(self, step: int) -> Generator[Any, None, None]:
        """Not atomic: while it is written the slot holds nothing."""
        self.slots[step % 2] = (-1, 0)
        self._process.at("publish")
        yield 0.0002
        self._process.world.promises.on_publish(self._process, step, self.local)
        self.slots[step % 2] = (step, self.local)
        yield from self._process.partner.keep(step, self.local)

    def publish_as_in_set_up(self, step: int) -> Generator[float, None, None]:
        """One that joins later begins with the local state of its set-up."""
        self.local = first_local(self._process.rank)
        yield from self._publish(step)

    @property
    def begun(self) -> int:
        """The last step whose block every rank has begun, as far as this rank's processes have seen."""
        return self._begun.get(self._where, -1)

    @begun.setter
    def begun(self, step: int) -> None:
        self._begun[self._where] = step

    def safe_steps(self) -> tuple[int, ...]:
        return tuple(sorted(step for step, _ in self.slots if step >= 0))

    # ------------------------------------------------------------------------------------------ going back

    def standing(self) -> tuple[int, bool, bool]:
        if not self.open:
            return self.step, self.clean, self.undo
        if self.clean:
            return self.step, True, False
        return self.step + 1, False, self._copied

    def keep(self) -> None:
        if self.open:
            self._rewind(self.step)
        self.light_at = 0

    def take_back(self, step: int) -> None:
        self.shared = self._copy
        self._rewind(step)
        self.light_at = 0

    def forget(self) -> None:
        """State is about to be received over ours."""
        self.clean = self.undo = self.open = False
        self.shared = HALF

    def received(self, shared: int, step: int) -> None:
        self.shared = shared
        self._rewind(step)
        self.light_at = 0
        self.was_damaged = False

    def _rewind(self, step: int) -> None:
        kept, value = self.slots[step % 2]
        if kept != step:
            raise NotJoined(f"the local state of step {step} is not here")
        self.local = value
        self.step, self.open, self.clean, self.undo = step, False, True, False

    def damaged(self) -> None:
        self.clean = False
        self._copied = False
        self.was_damaged = True
        self.shared = HALF
