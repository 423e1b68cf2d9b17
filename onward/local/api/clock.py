"""Times as the API writes them."""

from __future__ import annotations

import datetime


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def text(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def now_text(plus_s: float = 0) -> str:
    return text(now() + datetime.timedelta(seconds=plus_s))


def parse(value: str) -> datetime.datetime | None:
    """RFC 3339, as the API accepts it; None for anything else."""
    try:
        if value[-1:] in "zZ":
            value = value[:-1] + "+00:00"
        head, dot, tail = value.partition(".")
        if dot:  # Python 3.10 reads exactly 3 or 6 digits
            digits = len(tail) - len(tail.lstrip("0123456789"))
            value = f"{head}.{tail[:digits][:6].ljust(6, '0')}{tail[digits:]}"
        found = datetime.datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo is not None and "T" in value else None


def age(value: str | None) -> str:
    """Like kubectl's AGE column."""
    moment = parse(value) if value else None
    if moment is None:
        return "<unknown>"
    return duration((now() - moment).total_seconds())


_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400
_SHOWN = (  # below so many seconds: in this unit, and what is left in that one
    (120, 1, "s", 1, ""),
    (10 * _MINUTE, _MINUTE, "m", 1, "s"),
    (180 * _MINUTE, _MINUTE, "m", 1, ""),
    (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
    (48 * _HOUR, _HOUR, "h", 1, ""),
    (192 * _HOUR, _DAY, "d", _HOUR, "h"),
    (730 * _DAY, _DAY, "d", 1, ""),
    (8 * _YEAR, _YEAR, "y", _DAY, "d"),
)


def duration(seconds: float) -> str:
    """Short human time with the precision kubectl uses."""
    s = int(seconds)
    if s < -1:
        return "<invalid>"
    s = max(0, s)
    for below, size, unit, rest_size, rest_unit in _SHOWN:
        if s < below:
            rest = s % size // rest_size if rest_unit else 0
            return f"{s // size}{unit}" + (f"{rest}{rest_unit}" if rest else "")
    return f"{s // _YEAR}y"
