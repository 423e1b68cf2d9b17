"""One step as a transaction: what must be true before an update, and how to take it back.

Between the fences a block draws random numbers, exchanges gradients and then changes the shared state. Two modes:

- **careful**: the shared state is copied aside when the block begins, local state is published when it ends, and all
  ranks meet at a gate outside the process group before the step counts. Correct for any block.
- **light**: nothing is copied and nobody waits. Allowed once blocks have shown a regular shape on every rank: all
  changes come after the last collective over the whole world, and nothing local changes after it either. Local state
  is then published just before that collective is entered, so whoever sees it end knows that everybody's is safe.

A run begins careful and becomes light by a vote at the gate. It stays light through a recovery, when all survivors
report the same shape; a replacement is told it. A block that breaks the shape asks for a new generation, in which
everyone is careful again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

from onward.train.groups import Groups
from onward.train.local import LocalState, Small, same
from onward.train.operations import is_syncing
from onward.train.optimizers import parameters_of
from onward.train.protected import Protected, Seen
from onward.wire.page import Page

STEADY = 2  # blocks of one shape before a rank votes for light mode


class Transaction:
    """The state of the current step. Knows no network: waiting at the gate is the caller's."""

    def __init__(self, protected: Protected, local: LocalState, groups: Groups, page: Page) -> None:
        self._protected = protected
        self._local = local
        self._groups = groups
        self._page = page
        self.step = 0
        self.open = False
        self.clean = True
        self.undo = False  # the copy taken is that of step-1 (after a commit) or of step (in the block)
        self.light_at = 0  # >0: light mode; publish before this collective
        self._shape = 0  # the last `light_at` that all agreed on; kept while a new generation forms
        self.never_light = False
        self.broke_shape = False
        self.warned: set[str] = set()
        self.own_ns = 0
        self._uses_grads = False  # a block has begun with gradients and not zeroed them
        self._zeroed: set[int] = set()  # ids of parameters whose gradients a block has found, and zeroed before any use
        self._all_zeroed = False  # somebody else knows that of all
        self._at_end: int | None = None  # parameter versions when the last block ended
        self._at_commit: Small | None = None  # local state when the last block ended
        self._reset_block()
        self._trace: tuple[int, ...] = ()
        self._steady = 0

    def _reset_block(self) -> None:
        self._syncs = 0
        self._gated = False
        self._careful = False
        self._published: Small | None = None
        self._last_seen: Small | None = None
        self._buffers_seen: Seen = []  # when `_published` or `_last_seen` were taken
        self._after_gate = 0
        self._changed_before_gate = False
        self._found: list[torch.Tensor] = []  # parameters with gradients that the block has found, and not zeroed
        self._stepped: list[Optimizer] = []
        self._copied = False

    # ------------------------------------------------------------------------------------- the block

    def first_publish(self) -> None:
        """Make the state at the start of the first step safe."""
        self._local.publish(self.step, self._local.capture())

    def begin(self) -> bool:
        """Open the block. Returns whether a parameter had changed outside a block, for a warning."""
        start = time.thread_time_ns()
        self._protected.look_again()
        versions = self._protected.versions()
        outside = self._at_end not in (None, versions)
        self._versions = versions
        self._reset_block()
        self.open, self.clean, self.undo = True, True, False
        self._found = self._protected.with_grads()
        self._protected.begin()
        self.republish()
        self._careful = not self.light_at
        if self._careful:
            self._copy()
            self._protected.look_for_buffers()
        self._page.touch("progress_ns")
        self.own_ns = time.thread_time_ns() - start
        return outside

    def republish(self) -> None:
        """Between steps something may have been drawn: the next one begins from here, not from the last commit."""
        now = self._local.capture()
        self.republished = self._at_commit is not None and not same(now, self._at_commit)
        if self.republished:
            self._local.publish(self.step, now)
            self._at_commit = now

    republished = False

    def _copy(self) -> None:
        """While the shared state is as the block had found it; later a copy would be of no use."""
        if not self._copied and self.untouched:
            self._protected.save_undo()
            self._copied = True

    @property
    def untouched(self) -> bool:
        """The open block has not changed the shared state so far, as far as tensors count their changes."""
        return self._protected.versions() == self._versions

    def _has_changed(self) -> bool:
        """The same, and what is changed by way of `.data` is looked for while there is a copy to compare with."""
        return not self.untouched or (self._copied and not self.never_light and not self._protected.is_as_copied())

    def on_collective(self, op: str, over_world: bool) -> None:
        """Before a collective of this block is entered."""
        if self._gated:
            self._after_gate += 1
        if not over_world or not is_syncing(op):
            return
        self._syncs += 1
        if self.light_at:
            if self._syncs == self.light_at:
                start = time.thread_time_ns()
                self._published = self._local.capture()
                self._local.publish(self.step + 1, self._published, early=True)
                self._buffers_seen = self._protected.look_at_buffers()
                self.own_ns += time.thread_time_ns() - start
        elif not self._gated:
            self._last_seen = self._local.capture()
            if not self.never_light:
                self._buffers_seen = self._protected.look_at_buffers(closely=True)

    def mind(self) -> int:
        """Something is settled in this block that a redo must find unsettled: be careful with it. The next step."""
        if self.open and not self._gated:
            self._careful = True
        return self.step + 1 if self.open else self.step

    def on_zero_grad(self, parameters: Iterable[torch.Tensor]) -> None:
        if not self._gated and self._found:
            zeroed = set(map(id, parameters))
            self._zeroed |= zeroed
            self._found = [p for p in self._found if id(p) not in zeroed]

    def updates(self, optimizer: Optimizer) -> None:
        """It is about to use the gradients of its parameters."""
        if optimizer not in self._stepped:
            self._stepped.append(optimizer)

    def gate(self) -> bool:
        """Before the first update of the block. False when a collective of this block had failed: do not update."""
        if not self._groups.finish(self._groups.generation):
            return False
        if self._gated:
            return True
        start = time.thread_time_ns()
        self._gated = True
        self._changed_before_gate = self._has_changed()
        if self.light_at and self._published is None:
            self._careful = True  # fewer collectives than usual: everybody sees that, so everybody is careful
        if self._careful:
            self._copy()
        self.clean = False
        self.own_ns += time.thread_time_ns() - start
        return True

    def end(self) -> int:
        """The block ended well. Returns this rank's vote: the collective to publish at in light mode, or 0."""
        start = time.thread_time_ns()
        if not self._gated:  # no optimizer of torch's: the script changes parameters itself, or not at all
            self._changed_before_gate = self._has_changed()
        final = self._local.capture()
        self._at_commit = final
        vote = 0
        self._carry()
        if self._careful or self._published is None or self._local.carry_grads:
            self._careful = True
            self._copy()  # where nothing has changed yet
            self._local.publish(self.step + 1, final)
            vote = self._learn(final)
            self._shape = 0  # until all have agreed on one
        elif self._is_regular(final, self._published):
            self._local.slot(self.step + 1).confirm()
        else:
            self._local.publish(self.step + 1, final)
            self.broke_shape = True
        self.own_ns += time.thread_time_ns() - start
        return vote

    @property
    def needs_gate(self) -> bool:
        return self._careful

    def _learn(self, final: Small) -> int:
        seen = self._last_seen
        regular = (
            self._syncs > 0
            and seen is not None
            and not self.never_light
            and not self._local.carry_grads
            and self._is_regular(final, seen)
        )
        trace = (self._syncs, int(regular))
        self._steady = self._steady + 1 if regular and trace == self._trace else int(regular)
        self._trace = trace
        return self._syncs if self._steady >= STEADY else 0

    def _is_regular(self, final: Small, seen: Small) -> bool:
        """Nothing local has changed after the last collective (`seen`), and nothing shared before it."""
        changed = self._after_gate or self._changed_before_gate or not same(final, seen)
        return not changed and self._protected.still_so(self._buffers_seen)

    def _carry(self) -> None:
        """Gradients that live on into the next block, and are not zeroed there first, are local state.

        What a block does that has not come yet is not known. So that counts as used which has never been seen to be
        zeroed first, or which no optimizer has used in this block: it may be gathered for an update to come.
        """
        self._uses_grads = self._uses_grads or bool(self._found)
        self._local.carry_grads = self._uses_grads
        left = self._protected.with_grads() if not self._uses_grads else []
        if left:
            used = {id(p) for optimizer in self._stepped for p in parameters_of(optimizer)}
            zeroed = used if self._all_zeroed else used & self._zeroed
            self._local.carry_grads = any(id(p) not in zeroed for p in left)

    def applied(self) -> None:
        """The block's changes are all applied; whether the step counts is known after the gate."""
        self.step += 1
        self.open, self.clean = False, True
        self.undo = self._copied
        self._at_end = self._protected.versions()

    def counts(self) -> None:
        """The code after the block comes next, and may change what is small."""
        start = time.thread_time_ns()
        self._protected.note_commit(self.step)
        self.own_ns += time.thread_time_ns() - start

    def settled(self, agreed_light: int) -> None:
        """The step counts, and the vote at the gate came out as `agreed_light`."""
        if agreed_light and not self.light_at:
            self._protected.drop_undo_if_large()
            self.undo = False
        self.light_at = self._shape = agreed_light

    @property
    def shape(self) -> int:
        """The collective to publish at that all had agreed on; 0 when this rank cannot promise to keep to it."""
        return 0 if self.never_light or self.broke_shape else self._shape

    @property
    def learnt(self) -> int:
        return self._trace[0] if self._trace and self._trace[1] and not self.never_light else 0

    def learn_from(self, syncs: int) -> None:
        """A source's word for the shape of a block, so that one regular step is enough for a replacement."""
        self._trace, self._steady = (syncs, int(syncs > 0)), STEADY - 1 if syncs else 0

    # ------------------------------------------------------------------------------------- in a shadow

    def begin_shadow(self) -> None:
        """Open a block whose update is another's to decide on: no copy, no gate."""
        self._protected.look_again()
        self._versions = self._protected.versions()
        self._reset_block()
        self._found = self._protected.with_grads()
        self._protected.begin()
        self._local.publish(self.step, self._local.capture())
        self.open, self.clean, self.undo = True, True, False

    def end_shadow(self) -> None:
        """The block counts, there and so here."""
        self._carry()
        self.applied()
        self.counts()
        self._at_commit = self._local.capture()
        self._local.publish(self.step, self._at_commit)

    def stands(self) -> None:
        """Local state was put in place from outside: what is here now is what the next block begins with."""
        self._at_commit = self._local.capture()
        self._protected.reach_top(self.step)

    # ------------------------------------------------------------------------------------- going back

    def standing(self) -> tuple[int, bool, bool]:
        """(step, clean, undo) as a paused rank reports them."""
        if not self.open:
            return self.step, self.clean, self.undo
        if self.clean and self.untouched:
            return self.step, True, False
        return self.step + 1, False, self._copied

    def keep(self) -> None:
        """Go on from where we stand: put back what an unfinished block had changed."""
        if self.open:
            if self._copied:
                self._protected.undo()
            self._rewind(self.step)
        self.be_careful()

    def set_aside(self) -> None:
        """A block is about to be run for show, on a state that counts; `take_back` puts that in its place again."""
        self._protected.begin()
        self._protected.save_undo()
        self._protected.hold_top(self.step)

    def take_back(self, step: int) -> None:
        self._protected.undo()
        self._rewind(step)
        self.be_careful()

    def moved_to(self, step: int) -> None:
        """Shared state of `step` has been received."""
        self._rewind(step, received=True)
        self.be_careful()

    def _rewind(self, step: int, received: bool = False) -> None:
        self._protected.clear_grads()
        if not received:
            self._protected.rewind_small()
        self._protected.rewind_scalers(received)
        self._local.restore(step)
        self._at_commit = None
        self.step, self.open, self.clean, self.undo = step, False, True, False
        self._protected.look_again()
        self._at_end = self._protected.versions()

    def damaged(self) -> None:
        """This rank's tensors cannot be trusted any more."""
        self.clean = False
        self._copied = False

    def be_careful(self) -> None:
        """A new generation: the next step meets at the gate, unless it is told to `go_light`."""
        if self.broke_shape:
            self.never_light = True
            self.broke_shape = False
        self.light_at = 0
        self._page.set("launched_ns", 0)

    def go_light(self, shape: int) -> None:
        """All ranks of the new generation go on with steps of this shape; 0: with careful ones."""
        self.light_at = self._shape = shape
        self._all_zeroed = self._all_zeroed or shape > 0  # or they had not agreed on it


def note_zero_grad(tx: Transaction, protected: Protected) -> None:
    """Tell the transaction when gradients are zeroed, so that stale ones are not taken for carried ones."""

    def wrap(obj: Any, parameters: Callable[[], Iterable[torch.Tensor]]) -> None:
        inner = obj.zero_grad
        if getattr(inner, "_onward", False):
            return

        def zero_grad(*args: object, **kwargs: object) -> object:
            if tx.open:
                tx.on_zero_grad(parameters())
            return inner(*args, **kwargs)

        zero_grad._onward = True  # type: ignore[attr-defined]
        obj.zero_grad = zero_grad

    for module in protected.modules.values():
        wrap(module, module.parameters)
    for opt in protected.optimizers.values():
        wrap(opt, partial(parameters_of, opt))
