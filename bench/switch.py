"""Hot switch: two nodes of one rank and one that stands by, on this machine; one node is called sub-healthy.

The pause is the time from the last step that counted before the swap until all may train again: nobody does meanwhile.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from jobs import median
from nodes import Nodes, events

SICK, WELL = 1, 0


def measure(out: Path, **options: object) -> dict:
    """One switch of a job with this model."""
    with Nodes(out, nodes=2, flags=("--sub_healthy_strategy", "hotSwitch"), **options) as job:
        job.wait_steps(8, 300)
        calm = job.step_s()
        job.report(SICK)
        old = job.lines()[SICK][-1].pid
        job.wait("the switch", lambda: job.lines()[SICK][-1].pid != old, 120)
        job.wait_steps(4, 60)
        lines = job.lines()
    first = next(line for line in lines[SICK] if line.pid != old)
    gaps = {b.step: b.at - a.at for a, b in pairwise(lines[WELL])}
    beside = [s for step, s in gaps.items() if step < first.step][-10:]
    pause, marks = job.pause_of("hot-switch")
    words = ("stand", "switch", "going on", "follow")
    return {
        "step_s": calm,
        "step_beside_s": median(beside),
        "longest_beside_s": max(beside),
        "gap_s": max(gaps.get(first.step + i, 0.0) for i in (-1, 0, 1)),
        "pause_s": pause,
        "stages": {name: at - marks["detect"] for name, at in marks.items()},
        "followed": not any("state for rank" in text for text in events(job).splitlines()),
        "why": [text for text in events(job).splitlines() if any(word in text for word in words)],
    }
