"""Numbers of ranks and nodes, as people say them."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def listed(numbers: Iterable[int]) -> str:
    """`0, 2`."""
    return ", ".join(map(str, numbers))


def ranks_named(numbers: Collection[int]) -> str:
    """`rank 3`, or `ranks 0, 2`."""
    return f"rank{'' if len(numbers) == 1 else 's'} {listed(sorted(numbers))}"


def all_ranks(count: int) -> str:
    """`all 4 ranks`, or `the only rank`."""
    return f"all {count} ranks" if count > 1 else "the only rank"


def counted(number: int, what: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number} {what}{'' if number == 1 else 's'}"
