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


def duration(seconds: float) -> str:
    """Short human time with the precision kubectl uses."""
    s = int(seconds)
    if s < -1:
        return "<invalid>"
    if s <= 0:
        return "0s"
    if s < 120:
        return f"{s}s"
    m = s // 60
    if m < 10:
        return f"{m}m" + (f"{s % 60}s" if s % 60 else "")
    if m < 180:
        return f"{m}m"
    h = s // 3600
    if h < 8:
        return f"{h}h" + (f"{m % 60}m" if m % 60 else "")
    if h < 48:
        return f"{h}h"
    d = h // 24
    if h < 192:
        return f"{d}d" + (f"{h % 24}h" if h % 24 else "")
    if d < 730:
        return f"{d}d"
    y = d // 365
    if d < 8 * 365:
        return f"{y}y" + (f"{d % 365}d" if d % 365 else "")
    return f"{y}y"
