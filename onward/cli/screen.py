"""What a run looks like: lines with a rank in front, incidents with their timeline, a banner for a failure."""

from __future__ import annotations

import sys
import time

from onward.agent.observer import JobView, Outcome
from onward.core.incident import Incident


class PlainScreen:
    """Lines, for pipes, logs and CI."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet

    def line(self, rank: int, stream: str, text: str) -> None:
        target = sys.stderr if stream == "err" else sys.stdout
        print(f"[rank {rank}] {text}", file=target, flush=True)

    def note(self, text: str) -> None:
        if not self._quiet:
            print(f"{time.strftime('%H:%M:%S')} onward: {text}", file=sys.stderr, flush=True)

    def incident(self, incident: Incident, is_open: bool) -> None:
        if not self._quiet and not is_open:
            times = ", ".join(f"{stage} {ms:.0f}" for stage, ms in incident.timeline_ms())
            self.note(f"incident {incident.number} over: {incident.headline()}; {incident.total_ms:.0f} ms ({times})")

    def status(self, view: JobView) -> None:
        pass

    def finish(self, outcome: Outcome) -> None:
        self.note(f"{outcome.phase}: {outcome.steps} steps, {len(outcome.incidents)} incidents, "
                  f"goodput {outcome.goodput:.1%}, logs in {outcome.log_dir}")


def banner(outcome: Outcome) -> str:
    f = outcome.root_cause
    assert f is not None
    return f"{outcome.reason}\nrank {f.rank}: {f.text}\n{f.traceback}"
