"""A tree over the nodes of one kind. Each branch knows the most that is free below it, so that what does not fit is
passed over without being looked at, how empty the emptiest below it is, and how little the least has left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T", int, float)
NOTHING = -1
FIRST = 16


class RoomTree:
    """A complete binary tree in flat lists: branch `i` has the branches 2i and 2i+1; slot `s` is leaf `leaves + s`."""

    def __init__(self, width: int) -> None:
        self.leaves = FIRST
        self.most = [[NOTHING] * (2 * FIRST) for _ in range(width)]  # by resource
        self.emptiest = [float("-inf")] * (2 * FIRST)
        self.least = [float("inf")] * (2 * FIRST)

    def widen(self, width: int) -> None:
        """There is a resource more."""
        self.most += [[NOTHING] * (2 * self.leaves) for _ in range(width - len(self.most))]

    def grow(self, slots: int) -> None:
        while self.leaves < slots:
            self.most = [self._doubled(each, NOTHING) for each in self.most]
            self.emptiest = self._doubled(self.emptiest, float("-inf"))
            self.least = self._doubled(self.least, float("inf"))
            self.leaves *= 2

    def _doubled(self, old: list[T], fill: T) -> list[T]:
        """The old tree becomes the left branch of a new root."""
        new = [fill] * (2 * len(old))
        new[1] = old[1]
        width = 1
        while width <= self.leaves:
            new[2 * width : 3 * width] = old[width : 2 * width]
            width *= 2
        return new

    def put(self, slot: int, free: Sequence[int], emptiness: float, left: float) -> None:
        leaf = self.leaves + slot
        for most, value in zip(self.most, free, strict=True):
            if most[leaf] == value:
                continue
            most[leaf] = value
            i = leaf >> 1
            while i:
                a, b = most[2 * i], most[2 * i + 1]
                top = a if a > b else b
                if most[i] == top:
                    break
                most[i] = top
                i >>= 1
        self._climb(self.emptiest, leaf, emptiness, max)
        self._climb(self.least, leaf, left, min)

    def clear(self, slot: int) -> None:
        self.put(slot, [NOTHING] * len(self.most), float("-inf"), float("inf"))

    @staticmethod
    def _climb(values: list[float], leaf: int, value: float, best: Callable[[float, float], float]) -> None:
        if values[leaf] == value:
            return
        values[leaf] = value
        i = leaf >> 1
        while i:
            top = best(values[2 * i], values[2 * i + 1])
            if values[i] == top:
                break
            values[i] = top
            i >>= 1
