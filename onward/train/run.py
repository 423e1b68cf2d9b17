"""`onward.init()` and what it returns: the run, as a script sees it."""

from __future__ import annotations

import operator
from typing import Any

import torch.distributed as dist

from onward.errors import UsageError
from onward.log import as_on_screen
from onward.train.batches import Batches, batches_over
from onward.train.hooks import Hooks
from onward.train.joining import join
from onward.train.link import Link
from onward.train.loop import Loop
from onward.train.rank import Rank
from onward.train.settings import RankSettings, read_settings
from onward.train.step import Section, Steps
from onward.train.transaction import note_zero_grad

_run: Run | None = None


def start(timeout_s: float = 1800.0, device: str | None = None, backend: str | None = None) -> Run:
    """See `onward.init`."""
    global _run
    if _run is not None:
        raise UsageError("onward.init() was called before in this process; keep the run it returned")
    if dist.is_initialized():
        raise UsageError(
            "torch.distributed is initialised already; call onward.init() instead of init_process_group, it does both"
        )
    settings = read_settings(timeout_s, device, backend)
    as_on_screen()
    _run = Run(Link(settings.socket, settings.identity.token, settings.process), settings)
    return _run


class Run:
    """This rank's part in the job."""

    def __init__(self, link: Link, settings: RankSettings) -> None:
        me = link.welcome
        self.rank, self.local_rank, self.world_size = me.rank, me.local_rank, me.world_size
        self.incarnation = me.incarnation
        self.elastic = me.elastic
        self._rank = Rank(link, settings)
        self.device = self._rank.device
        self._loop = Loop(self._rank)
        self._used_steps = False
        link.start(self._rank.page, Hooks(self._rank).on_pause)
        join(self._rank)

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that take part now."""
        return self._rank.members

    def protect(self, local: dict[str, Any] | None = None, **objects: Any) -> None:
        """Name what a replacement must be given. `local` holds what differs from rank to rank."""
        if self._rank.begun:
            raise UsageError("protect must be called before the first step")
        if not objects and not local:
            raise UsageError("protect needs at least one object, for example run.protect(model=model, optimizer=opt)")
        problems = []
        for is_local, group in ((False, objects), (True, local or {})):
            for name, value in group.items():
                try:
                    self._rank.protected.add(name, value, is_local)
                except UsageError as e:
                    problems.extend(e.problems)
        if problems:
            raise UsageError(problems)
        note_zero_grad(self._rank.tx, self._rank.protected)

    def steps(self, n: int) -> Steps:
        """The steps 0 to n-1. One that faults is run again, on every rank, from the same state."""
        if not hasattr(n, "__index__") or n < 0:
            raise UsageError(f"steps needs a number of steps, got {n!r}")
        n = operator.index(n)  # NumPy has integers of its own
        if self._used_steps:
            raise UsageError(
                "run.steps() was used before; a run has one loop, put the steps of all epochs into it "
                "(epoch = step.index // steps_per_epoch)"
            )
        self._used_steps = True
        self._rank.page.set("total", n)
        return Steps(lambda: self._loop.steps(n), n)

    def batches(self, source: Any, **options: Any) -> Batches:
        """Batches that survive a redo and a replacement. See `onward.train.batches`."""
        made = batches_over(self._rank, source, **options)
        self._rank.local.cursors.append(made)
        return made

    def checkpoint(self, every: int, dir: Any = "ckpt", keep: int = 3, resume: bool = True) -> None:
        """Save the state every so many steps to `dir`, and begin from the newest valid checkpoint that is there."""
        if self._used_steps:
            raise UsageError("checkpoint must be called before run.steps()")
        self._rank.checkpoints.plan(every, dir, keep, resume)

    def log(self, loss: float) -> None:
        """Show `loss` to whoever watches the job. After a block run for show: nothing, the loss is not the step's."""
        if self._rank.in_ghost:
            return
        self._rank.page.set_float("loss_bits", float(loss))
        self._rank.page.set("loss_set", 1)

    def section(self, name: str) -> Section:
        """Marks work with collectives outside a step, such as evaluation."""
        return Section(self._rank.page, name)
