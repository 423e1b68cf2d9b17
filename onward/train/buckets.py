"""How DDP lays gradients out in buckets.

A sum depends on its place in a bucket to the last bit, and ranks with different layouts add up what does not belong
together. torch settles a wrapper's layout after its first backward pass, from the order in which the gradients came,
and tells all ranks that of rank 0. Here the layout is part of the state of a step: it is settled at the end of the
block that used a wrapper first, goes back with a redo of that block, and is told to whoever takes a place later.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch
from torch._C._distributed_c10d import Reducer

from onward.train.groups import Groups

Indices = list[list[int]]  # of parameters, by bucket
_build, _rebuild = Reducer.__init__, Reducer._rebuild_buckets
_in_use: Buckets | None = None


class Settled(msgspec.Struct, frozen=True, array_like=True):
    """A wrapper's layout, and the first step that it is that of. Wrappers are numbered as the script makes them."""

    number: int
    since: int
    indices: Indices


class _Wrapper:
    """What is known of one wrapper's reducer."""

    def __init__(self, reducer: Any, first: Indices) -> None:
        self.reducer = weakref.ref(reducer)
        self.first = first  # the layout it was made with
        self.settled: Settled | None = None
        self.changes = False  # it is of a kind whose layout is settled later


class Buckets:
    """The layouts of all wrappers of this process."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._wrappers: list[_Wrapper] = []
        self.alone: Callable[[], bool] = lambda: False  # a block is run for show: layouts stay as they are
        self.on_first_use: Callable[[], int] = lambda: 0  # answers with the step from which on a new layout is settled

    def watch(self) -> None:
        """Hear of every wrapper that is made from now on."""
        global _in_use
        _in_use = self
        Reducer.__init__, Reducer._rebuild_buckets = _made, _asked  # type: ignore[method-assign, assignment]

    def add(self, reducer: Any, first: Indices) -> None:
        wrapper = _Wrapper(reducer, first)
        self._wrappers.append(wrapper)
        wrapper.changes = self._lay(reducer, first)
        reducer._reset_state()

    def asked(self, reducer: Any) -> bool:
        """A forward pass begins: torch settles the layout now, if there was a backward pass before."""
        found = next((w for w in self._wrappers if w.reducer() is reducer), None)
        if found is None or not found.changes:
            return bool(_rebuild(reducer))
        if found.settled is not None or self.alone():
            return False
        return self._settle(found, reducer, self.on_first_use())

    def settle(self, step: int) -> None:
        """At the end of the block of `step`, which all ranks run."""
        for wrapper in self._wrappers:
            reducer = wrapper.reducer()
            if wrapper.changes and wrapper.settled is None and reducer is not None:
                self._settle(wrapper, reducer, step + 1)

    def _settle(self, wrapper: _Wrapper, reducer: Any, since: int) -> bool:
        told: list[Any] = []
        before = self._groups.told

        def look(op: str, result: Any) -> bool:
            told.append(result[0])
            return before is not None and before(op, result)

        with self._told(look):
            settled = bool(_rebuild(reducer))
        if settled:
            (*flat, _), sizes = (t.tolist() for t in told)
            rest = iter(flat)
            indices = [[next(rest) for _ in range(n)] for n in sizes]
            wrapper.settled = Settled(self._wrappers.index(wrapper), since, indices)
        return settled

    # ------------------------------------------------------------------------------------- going elsewhere

    def describe(self) -> list[Settled]:
        return [w.settled for w in self._wrappers if w.settled is not None]

    def accept(self, settled: list[Settled]) -> None:
        """Those of a source. They are put in place on arrival."""
        by_number = {s.number: s for s in settled}
        for number, wrapper in enumerate(self._wrappers):
            wrapper.settled = by_number.get(number)

    def arrive(self, step: int) -> None:
        """Forget what an interrupted pass has left behind, and stand as at the start of `step`."""
        for wrapper in self._wrappers:
            reducer = wrapper.reducer()
            if reducer is None:
                continue
            reducer._reset_state()
            if wrapper.settled is not None and wrapper.settled.since > step:
                wrapper.settled = None
            if wrapper.settled is not None:
                self._lay(reducer, wrapper.settled.indices)
            elif wrapper.changes:
                self._lay(reducer, wrapper.first)
                reducer._reset_state()

    def _lay(self, reducer: Any, indices: Indices) -> bool:
        """Give it this layout: torch asks rank 0 for one, and this is the answer. False where it does not ask."""
        answers = [[i for bucket in indices for i in bucket] + [len(indices)], [len(bucket) for bucket in indices]]

        def tell(op: str, result: Any) -> bool:
            result[0].copy_(torch.tensor(answers.pop(0), dtype=result[0].dtype))
            return True

        with self._told(tell):
            reducer._push_all_rebuilt_params()
            return bool(_rebuild(reducer))

    @contextlib.contextmanager
    def _told(self, told: Callable[[str, Any], bool]) -> Iterator[None]:
        before, self._groups.told = self._groups.told, told
        try:
            yield
        finally:
            self._groups.told = before


def _made(reducer: Any, parameters: Any, indices: Indices, *args: Any, **kwargs: Any) -> None:
    _build(reducer, parameters, indices, *args, **kwargs)
    if _in_use is not None:
        _in_use.add(reducer, [list(bucket) for bucket in indices])


def _asked(reducer: Any) -> bool:
    return _in_use.asked(reducer) if _in_use is not None else bool(_rebuild(reducer))
