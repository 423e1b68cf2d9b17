"""How much memory may still be taken here: what the machine has, or what the limit of a container leaves.

A container sees the memory of the whole machine and is killed at its own limit, on Kubernetes with all its processes.
So whoever takes memory that is only of use (a spare, a copy) asks here.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import psutil

ROOT = Path("/sys/fs/cgroup")
OWN = "/proc/self/cgroup"
_TURN = Path("/proc/self/oom_score_adj")
_turn: bytes | None = None  # what stood there before


def available_bytes() -> int:
    """What can be taken before the machine, or one of the control groups that we are in, has no more."""
    return min([psutil.virtual_memory().available, *(left for group in _groups() if (left := _left_in(group)) >= 0)])


def limit_bytes() -> int:
    """The memory of this machine, or of the smallest control group that we are in."""
    limits = [limit for group in _groups() if (limit := _limit_of(group)) >= 0]
    return min([psutil.virtual_memory().total, *limits])


def oom_kills() -> int:
    """How often the OOM killer has acted for lack of memory in our control group so far, where the kernel shows it."""
    for group in _groups():
        events = _read(group / "memory.events") or _read(group / "memory.oom_control")
        found = re.search(r"^oom_kill (\d+)$", events, re.MULTILINE)
        if found:
            return int(found[1])
    return 0


def go_first() -> None:
    """Let the kernel end this process before any other when there is no memory left: it is only of use."""
    global _turn
    with contextlib.suppress(OSError):
        _turn = _TURN.read_bytes()
        _TURN.write_bytes(b"1000")


def stay() -> None:
    """Take that back: it is needed now. Who may not set this freely may still set it to what it was."""
    global _turn
    with contextlib.suppress(OSError):
        if _turn is not None:
            _TURN.write_bytes(_turn)
            _turn = None


def _groups() -> list[Path]:
    """The directories of our control groups that have to do with memory, from our own to the top that we can see."""
    found: list[Path] = []
    for line in _read(Path(OWN)).splitlines():
        _, controllers, own = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        for top in (ROOT / "memory",) if controllers else (ROOT, ROOT / "unified"):
            # A container sees its own group as the top, and may be told a path that is not below it.
            place = top / own.strip("/")
            if ".." in place.parts or not place.is_dir():
                place = top
            found += [p for p in (place, *place.parents) if p.is_relative_to(top) and p.is_dir()]
    return found


def _left_in(group: Path) -> int:
    """What the limit of a group leaves, -1 without one. Cached files give way, unless processes have mapped them."""
    limit = _limit_of(group)
    used = _number(_read(group / "memory.current") or _read(group / "memory.usage_in_bytes"))
    if limit < 0 or used < 0:
        return -1
    stat = dict(line.split() for line in _read(group / "memory.stat").splitlines() if line.count(" ") == 1)
    total = "total_" if "total_inactive_file" in stat else ""  # version 1 tells of the group itself without it
    shared = int(stat.get(f"{total}shmem", 0))  # counted as mapped, and is no cache
    mapped = max(0, int(stat.get("file_mapped", stat.get("total_mapped_file", 0))) - shared)
    cached = int(stat.get(f"{total}inactive_file", 0)) + int(stat.get(f"{total}active_file", 0))
    return max(0, limit - used + max(0, cached - mapped))


def _limit_of(group: Path) -> int:
    """-1: none. Version 1 says that with a number that is larger than any machine, which does no harm."""
    limits = [_number(_read(group / name)) for name in ("memory.max", "memory.high", "memory.limit_in_bytes")]
    return min((limit for limit in limits if limit >= 0), default=-1)


def _number(text: str) -> int:
    return int(text) if text.strip().isdecimal() else -1


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
