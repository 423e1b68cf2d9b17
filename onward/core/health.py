"""Who is hung, from what all ranks show at once.

No rank can tell its own hang from a slow peer. Together they can: when some wait in collective n and one has not even
entered it, that one is guilty, whatever it is doing. So the limit is a few step times, not the half hour of a
collective timeout. Where slowness is legal (first step, sections, a paused job) the question is not asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from onward.core.facts import Progress


@dataclass(frozen=True)
class Suspicion:
    """The ranks that hold the others up, and the evidence in a sentence."""

    ranks: tuple[int, ...]  # empty: nobody in particular, the connection itself
    waited_s: float
    limit_s: float
    why: str

    @property
    def certain(self) -> bool:
        return self.waited_s >= self.limit_s


def limit_s(step_times: Sequence[float], floor_s: float, first_s: float, late_s: float = 0.0) -> float:
    """How long the others may wait for one rank: adaptive, and generous until a few steps have been seen.

    `late_s` is how late the agents' own ticks are: a machine that keeps them waiting keeps ranks waiting too.
    """
    if len(step_times) < 3:
        return first_s
    return max(floor_s, 3.0 * median(step_times), 1.5 * max(step_times)) + late_s


def own_idle_s(idle_s: float, queued_s: float) -> float:
    """Of the time without progress, what a rank must answer for: not what it stood in the queue for a core.

    Some of it always counts, so that one in an endless loop on a busy machine is found too, if later.
    """
    return max(idle_s - queued_s, idle_s / 4.0)


def suspect(progress: Mapping[int, Progress], limit: float) -> Suspicion | None:
    """The ranks to blame for the longest wait, if there is a wait worth the name (half the limit)."""
    waiting = {r: p for r, p in progress.items() if p.pending_s > 0.0 or p.gate}
    if not waiting or any(p.section for p in progress.values()):
        return None
    front = max(p.launched for p in waiting.values())
    longest = max(p.idle_s if p.gate else p.pending_s for p in waiting.values() if p.launched == front)
    if longest < limit / 2:
        return None
    blocked = [r for r, p in waiting.items() if p.launched == front and p.pending_s > 0.0]
    if not blocked:
        blocked = list(waiting)
    behind = {r: p for r, p in progress.items() if p.launched < front}
    if not behind and all(p.gate for p in waiting.values()):
        behind = {r: p for r, p in progress.items() if r not in waiting}  # past the last collective, not at the gate
    silent = _silent(progress, limit)
    if behind:
        waited = min(longest, max(p.idle_s for p in behind.values()))  # who has just moved is late, not hung
        enough = limit if waited >= limit else limit / 2
        late = {r: p for r, p in behind.items() if p.idle_s >= enough and not _held_up(r, progress, silent)}
        if not late:
            return None
        guilty = _guilty(late, silent)
        evidence = "; ".join(_describe(r, progress[r], r in silent) for r in guilty)
        where = "at the gate" if progress[blocked[0]].gate else f"in collective {front}"
        return Suspicion(guilty, waited, limit, f"rank {_ranks(blocked)} waited {longest:.2f} s {where}; {evidence}")
    if silent:
        why = f"all ranks entered collective {front} and waited {longest:.2f} s; rank {_ranks(silent)} shows no life"
        return Suspicion(silent, longest, limit, why)
    if len(waiting) == len(progress):
        return Suspicion((), longest, limit, f"every rank waited {longest:.2f} s in collective {front}")
    return None


def _silent(progress: Mapping[int, Progress], limit: float) -> tuple[int, ...]:
    """Ranks whose processes show no life while others do. If none does, it is the reader that was away."""
    found = tuple(sorted(r for r, p in progress.items() if min(p.beat_s, p.idle_s) >= limit / 2))
    return found if len(found) < len(progress) else ()


def _held_up(rank: int, progress: Mapping[int, Progress], silent: tuple[int, ...]) -> bool:
    """It waits in a collective that somebody has not even entered: after a broadcast ranks can be several apart."""
    p = progress[rank]
    return p.pending_s > 0.0 and rank not in silent and any(q.launched < p.launched for q in progress.values())


def _guilty(late: Mapping[int, Progress], silent: tuple[int, ...]) -> tuple[int, ...]:
    """Who holds the others up, where `late` are behind.

    Of a ring's members some get out of a collective before the rest, and wait in the next one. Who is still inside is
    held up too, by one that stopped: that one is in no collective at all, or shows no life.
    """
    stopped = {r for r, p in late.items() if p.pending_s <= 0.0 or r in silent}
    return tuple(sorted(stopped or silent or late))


def _describe(rank: int, p: Progress, silent: bool) -> str:
    alive = f"its process has been silent for {p.beat_s:.1f} s" if silent else "its process answers"
    return f"rank {rank} entered only {p.launched} and made no progress for {p.idle_s:.2f} s ({alive})"


def _ranks(ranks: Sequence[int]) -> str:
    return ", ".join(str(r) for r in sorted(ranks))
