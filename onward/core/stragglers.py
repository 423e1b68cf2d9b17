"""Which ranks are slow, from how long each computes in a step.

Ranks that wait for each other take the same time for a step, so the step tells nothing; the part of it in which a rank
computes itself does. A rank is compared with the *others* at the same time: when all are slow alike, nobody is to
blame. Where many share a machine's processors, who has to wait for one is the scheduler's choice and changes every few
seconds: so that part is shared among the ranks of a machine before they are compared. Medians over some steps, a
distance that matters and time for it to pass keep a hiccup from being called slowness; to be cleared a rank must be
well below what it is called slow for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

WINDOW = 8  # steps of each rank that are looked at
LEAST = 5  # of them must be there
RATIO = 1.5  # of the others' time, from which on a rank is slow
CLEARED = 1.25  # and below which it is so no more
FLOOR_S = 0.010  # a difference that is not worth a word
HOLD_S = 3.0  # it must last for so long


@dataclass(frozen=True)
class Effort:
    """One step of one rank."""

    compute_s: float  # without any waiting for others
    queued_s: float = 0.0  # the part of it in which no processor was free


@dataclass(frozen=True)
class Watch:
    """What was noticed so far."""

    behind: Mapping[int, float] = field(default_factory=dict)  # rank -> since when it has been
    slow: Mapping[int, str] = field(default_factory=dict)  # rank -> the evidence, as of when it was called so


def judge(
    watch: Watch, steps: Mapping[int, Sequence[Effort]], machines: Mapping[int, str], world_size: int, now: float
) -> Watch:
    """`steps`: the latest of each rank; `machines`: where it runs. Who has too few steps keeps the name it has."""
    windows = {r: efforts[-WINDOW:] for r, efforts in steps.items() if len(efforts) >= LEAST}
    if len(windows) < 2 or 2 * len(windows) < world_size:
        return Watch({}, watch.slow)
    queued = _queued(windows, machines)
    own = {r: sorted(e.compute_s - e.queued_s for e in w) for r, w in windows.items()}
    middles = {r: median(times) + queued[r] for r, times in own.items()}
    lows = {r: times[len(times) // 4] + queued[r] for r, times in own.items()}
    highs = {r: times[-1 - len(times) // 4] + queued[r] for r, times in own.items()}
    all_middles, all_highs = sorted(middles.values()), sorted(highs.values())
    behind: dict[int, float] = {}
    slow = {r: why for r, why in watch.slow.items() if r not in windows}
    for rank, middle in middles.items():
        others = _median_without(all_middles, middle)
        excess, ratio = middle - others, middle / max(others, 1e-9)
        apart = lows[rank] > _median_without(all_highs, highs[rank])  # its good steps are worse than their bad ones
        if rank in watch.slow:
            if ratio >= CLEARED and excess >= FLOOR_S / 2:
                slow[rank] = watch.slow[rank]
        elif ratio >= RATIO and excess >= FLOOR_S and apart:
            behind[rank] = watch.behind.get(rank, now)
            if now - behind[rank] >= HOLD_S:
                del behind[rank]
                slow[rank] = evidence(rank, middle, others, queued[rank], len(windows[rank]))
    return Watch(behind, slow)


def _queued(windows: Mapping[int, Sequence[Effort]], machines: Mapping[int, str]) -> dict[int, float]:
    """What a step of each rank waits for a processor: the same for all on one machine."""
    sums: dict[str, list[float]] = {}
    for rank, window in windows.items():
        sums.setdefault(machines.get(rank, ""), []).append(sum(e.queued_s for e in window) / len(window))
    means = {machine: sum(waits) / len(waits) for machine, waits in sums.items()}
    return {rank: means[machines.get(rank, "")] for rank in windows}


def _median_without(ordered: Sequence[float], one: float) -> float:
    """The median of sorted numbers when one of them is left out, without sorting them again."""
    at, n = bisect_left(ordered, one), len(ordered) - 1

    def nth(i: int) -> float:
        return ordered[i if i < at else i + 1]

    return nth(n // 2) if n % 2 else (nth(n // 2 - 1) + nth(n // 2)) / 2


def evidence(rank: int, own: float, others: float, queued: float, steps: int) -> str:
    times = f", {own / others:.1f} times as long" if others > 0 else ""
    waits = f"; {queued * 1000:.0f} ms of it, no processor is free on its machine" if queued > own / 4 else ""
    return (
        f"rank {rank} is slow: it computes {own * 1000:.0f} ms a step, the others {others * 1000:.0f} ms{times}"
        f" (medians over {steps} steps{waits})"
    )
