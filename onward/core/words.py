"""Numbers of ranks and nodes, and times, as people say them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = r"([0-9]{1,9}(?:\.[0-9]{1,6})?)"
_PART = re.compile(_NUMBER + "(min|s|m|h|d)")


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


def shortened(text: str, most: int) -> str:
    """Of a long text the beginning, up to a word, and a sign that there was more."""
    if len(text) <= most:
        return text
    kept = text[: most - 4]
    return f"{kept.rpartition(' ')[0] or kept} ..."


def read_time(text: str) -> float | None:
    """`60`, `90s`, `5m`, `1h30m`, `1d` in seconds; None when it is no time."""
    text = text.strip()
    if re.fullmatch(_NUMBER, text):
        return float(text)
    if not text or _PART.sub("", text):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
