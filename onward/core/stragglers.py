"""Which ranks are slow, from how long each computes in a step.

Ranks that wait for each other take the same time for a step, so the step tells nothing; the part of it in which a rank
computes itself does. A rank is compared with the *others* at the same time: when all are slow alike, as on a busy
machine, nobody is to blame. Medians over some steps, a distance that matters, and time for it to pass keep a hiccup
from being called slowness; to be cleared a rank must be well below what it is called slow for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

WINDOW = 8  # steps of each rank that are looked at
LEAST = 5  # of them must be there: the median is slow once as many are
RATIO = 1.5  # of the others' time, from which on a rank is slow
CLEARED = 1.25  # and below which it is so no more
FLOOR_S = 0.010  # a difference that is not worth a word
HOLD_S = 3.0  # it must last for so long


@dataclass(frozen=True)
class Watch:
    """What was noticed so far."""

    behind: Mapping[int, float] = field(default_factory=dict)  # rank -> since when it has been
    slow: Mapping[int, str] = field(default_factory=dict)  # rank -> the evidence, as of when it was called so


def judge(watch: Watch, samples: Mapping[int, Sequence[float]], world_size: int, now: float) -> Watch:
    """`samples`: the latest compute times of each rank, in seconds. Who has too few keeps the name it has."""
    times = {r: median(s[-WINDOW:]) for r, s in samples.items() if len(s) >= LEAST}
    if len(times) < 2 or 2 * len(times) < world_size:
        return Watch({}, watch.slow)
    ordered = sorted(times.values())
    behind: dict[int, float] = {}
    slow = {r: why for r, why in watch.slow.items() if r not in times}
    for rank, own in times.items():
        others = _median_without(ordered, own)
        excess, ratio = own - others, own / max(others, 1e-9)
        if rank in watch.slow:
            if ratio >= CLEARED and excess >= FLOOR_S / 2:
                slow[rank] = watch.slow[rank]
        elif ratio >= RATIO and excess >= FLOOR_S:
            behind[rank] = watch.behind.get(rank, now)
            if now - behind[rank] >= HOLD_S:
                del behind[rank]
                slow[rank] = evidence(rank, own, others, min(len(samples[rank]), WINDOW))
    return Watch(behind, slow)


def _median_without(ordered: Sequence[float], one: float) -> float:
    """The median of sorted numbers when one of them is left out, without sorting them again."""
    at, n = bisect_left(ordered, one), len(ordered) - 1

    def nth(i: int) -> float:
        return ordered[i if i < at else i + 1]

    return nth(n // 2) if n % 2 else (nth(n // 2 - 1) + nth(n // 2)) / 2


def evidence(rank: int, own: float, others: float, steps: int) -> str:
    times = f", {own / others:.1f} times as long" if others > 0 else ""
    return (
        f"rank {rank} is slow: it computes {own * 1000:.0f} ms a step, the others {others * 1000:.0f} ms{times}"
        f" (medians over {steps} steps)"
    )
