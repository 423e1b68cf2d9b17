"""What users hold: a step of the loop, to be run in a `with` block, and a section of work between steps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from onward.errors import UsageError
from onward.wire.messages import RankOrder
from onward.wire.page import Page

if TYPE_CHECKING:
    from onward.train.block import Blocks
    from onward.train.follow import Following


class Step:
    """One step of the loop. Use it as `with step:`; `committed` says afterwards whether it counts."""

    def __init__(
        self,
        blocks: Blocks,
        index: int,
        rehearsal: bool = False,
        ghost: RankOrder | None = None,
        following: Following | None = None,
    ) -> None:
        self.index = index
        self.committed = False
        self.entered = False
        self.error = ""
        self._blocks = blocks
        self._rehearsal = rehearsal
        self._ghost = ghost  # the order to enter by, at the end of the block
        self._following = following  # the block is run beside a rank that trains

    def __enter__(self) -> Step:
        if self.entered:
            raise UsageError("a step can be entered once; take the next one from run.steps(n)")
        self.entered = True
        if self._following is not None:
            self._following.enter()
        elif self._ghost is not None:
            self._blocks.begin_ghost(self._ghost)
        elif not self._rehearsal:
            self._blocks.begin(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        if self._following is not None:
            return self._following.leave(error)
        if self._ghost is not None:
            if error is not None and self._blocks.is_known(self._ghost, error, tb):
                return False
            self.committed = self._blocks.end_ghost(self._ghost)
            return error is None or isinstance(error, Exception)
        if self._rehearsal:
            self.error = f"{kind.__name__}: {error}" if kind is not None else ""
            return error is None or isinstance(error, Exception)
        if error is None:
            try:
                self._blocks.at_end(self.index)
            except Exception as injected:
                error, tb = injected, injected.__traceback__
        if error is None:
            self._blocks.end(self)
            return False
        if self._blocks.failed(error, tb):
            return True
        if tb is error.__traceback__ and sys.exc_info()[1] is None:
            raise error
        return False

    def __repr__(self) -> str:
        return f"<step {self.index}{' committed' if self.committed else ''}>"


class Steps:
    """The steps of a run, for one loop over them.

    Not an iterator itself: the loop alone holds that, so it is let go of, and the end of the loop noticed, at once when
    the loop is left, whatever name or wrapper the steps have (`bar = tqdm(run.steps(n))`).
    """

    def __init__(self, make: Callable[[], Iterator[Step]], n: int) -> None:
        self._make = make
        self._n = n
        self._begun = False

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[Step]:
        if self._begun:
            raise UsageError("run.steps() was used before; a run has one loop, put all its steps into it")
        self._begun = True
        return self._make()


class Section:
    """Work outside a step, where slowness is legal and collectives are expected."""

    def __init__(self, page: Page, name: str) -> None:
        self._page = page
        self.name = name

    def __enter__(self) -> Section:
        self._page.set("section", self._page.get("section") + 1)
        return self

    def __exit__(self, kind: Any, error: Any, tb: Any) -> None:
        self._page.set("section", max(0, self._page.get("section") - 1))
        self._page.touch("progress_ns")
