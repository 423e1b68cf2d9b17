"""What a rank that trains tells a stand-in that follows it, and when. How it gets there is `feed`'s."""

from __future__ import annotations

from onward.train.feed import Ended, check_of, digest_of
from onward.train.rank import Rank


class Telling:
    """Beside the loop of one rank; does nothing while nobody follows."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._feed, self._tx, self._local = rank.feed, rank.tx, rank.local

    def begin_if_wanted(self) -> None:
        """At the top of the loop: a stand-in may want to follow this rank."""
        if not self._feed.wanted:
            return
        self._tx.republish()
        if self._rank.groups.accelerated:
            self._feed.refuses = "results of collectives on a device are not told yet"
        elif self._tx.step < 1 or self._local.slot(self._tx.step).step != self._tx.step:
            return  # not before the wrappers have settled, and the local state of this step is safe
        if self._feed.begin(self._tx.step, self._rank.protected, self._local, self._tx.learnt):
            self._rank.groups.tap = self._feed.expect

    def block_begun(self, step: int, changed_outside: bool) -> None:
        if not self._feed.open:
            return
        if changed_outside:
            self._feed.drop("it changes its parameters outside steps")
        image = self._local.slot(step).content() if self._tx.republished else b""
        small = self._rank.protected.check_small(at_begin=True)
        self._feed.begun(step, check_of(self._local.capture()), small, image)

    def committed(self, step: int) -> None:
        if self._feed.open:
            self._feed.committed(step)

    def end_at_fence(self, generation: int) -> None:
        """Who follows is told where this rank stands, and what is to be found there."""
        self._rank.groups.tap = None
        if not self._feed.open:
            return
        if not self._tx.open and self._local.begun >= self._tx.step:
            self._tx.republish()  # the code after the last block has been run, and may have drawn something
        step, clean, _ = self._tx.standing()
        slot = self._local.slot(step)
        if not clean or slot.step != step or not self._rank.holds:
            return self._feed.end(Ended(why="it was interrupted in the middle of an update"))
        self._feed.end(
            Ended(
                step=step,
                generation=generation,
                past=self._local.begun >= step,
                digest=digest_of(self._rank.protected),
                small=self._rank.protected.check_small(at_begin=self._tx.open),
                light=self._tx.shape,
                local=[s.content() for i in (0, 1) if (s := self._local.slot(step + i)).step == step + i],
                between=self._rank.between.results(),
            )
        )

    def end_of_loop(self) -> None:
        self._feed.end(Ended(why="the loop is over"))
