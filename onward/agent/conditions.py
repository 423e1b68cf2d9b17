"""The conditions of a job as its launcher has heard of them: which stand now, and which there have been."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from onward.core.conditions import Condition

KEPT = 1000


class Conditions:
    """Fed with every order; answers with what is new, in words."""

    def __init__(self) -> None:
        self.now: tuple[Condition, ...] = ()
        self.over: list[Condition] = []  # `until`: when it was over

    def update(self, conditions: Sequence[Condition]) -> list[str]:
        before, after = ({c.key: c for c in group} for group in (self.now, conditions))
        self.now = tuple(conditions)
        said = [f"{in_words(c)}" for key, c in after.items() if key not in before]
        for key, c in before.items():
            if key not in after:
                self.over.append(replace(c, until=time.time()))
                said.append(f"over: {in_words(c)}")
        del self.over[:-KEPT]
        return said


def in_words(c: Condition) -> str:
    return f"{'sub-health' if c.kind == 'slow' else c.kind}: {c.text}"
