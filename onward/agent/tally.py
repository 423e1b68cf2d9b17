"""Steps and time, counted from what the ranks' pages show: what was lost, and how much of the time was good."""

from __future__ import annotations

from collections.abc import Sequence

from onward.wire.messages import Times


class Tally:
    """Fed on every tick. A step counts when every rank has committed it."""

    def __init__(self) -> None:
        self.step = 0
        self.lost = 0
        self._high = 0
        self._began_at: float | None = None
        self._seen_at = 0.0
        self._moved_at = 0.0
        self._step_s = 0.0  # what a step takes, lately
        self._recovering = False
        self._open_at: float | None = None  # since when an incident is open that has not been counted yet
        self._incidents_s = 0.0
        self._still_s = 0.0  # stood still before the incident that is open was noticed
        self._wasted_s = 0.0  # outside incidents: standing still before one was noticed, or redoing lost steps

    def see(self, steps: Sequence[int], recovering: bool, now: float) -> None:
        """`steps` committed by each rank, -1 where that is not known; `recovering`: an incident is open."""
        low = min(steps, default=-1)
        if self._began_at is not None:
            if not recovering and low < self._high:
                self._wasted_s += now - self._seen_at
            elif recovering and not self._recovering:
                self._still_s = max(0.0, now - self._moved_at - self._step_s)
        if not recovering:
            self._open_at = None
        elif self._open_at is None:
            self._open_at = now
        self._seen_at, self._recovering = now, recovering
        if low < 0:
            return
        if low < self.step:
            self.lost += self.step - low
        elif low > self.step:
            took = (now - self._moved_at) / (low - self.step)
            self._step_s = took if not self._step_s else 0.8 * self._step_s + 0.2 * took
            self._moved_at = now
        self.step = low
        self._high = max(self._high, low)
        if low > 0 and self._began_at is None:
            self._began_at, self._moved_at, self._step_s = now, now, 0.0

    def agreed(self, step: int) -> None:
        """The ranks go on at `step`: the manager's word, which comes before the pages show it."""
        if 0 <= step < self.step:
            self.lost += self.step - step
            self.step = step

    def closed(self, incident_s: float, now: float, noticed_s: float = 0.0) -> None:
        """An incident is over, whose first part was the time until it was noticed.

        What of it lies before our first step, as on a node that joins late, is not ours.
        """
        if self._began_at is not None:
            self._incidents_s += min(incident_s, now - self._began_at)
            self._wasted_s += max(0.0, self._still_s - noticed_s)
        self._still_s = 0.0
        self._open_at = now if self._recovering else None

    def times(self, now: float) -> Times:
        if self._began_at is None or now <= self._began_at:
            return Times()
        trained_s = now - self._began_at
        open_s = now - max(self._open_at, self._began_at) if self._open_at is not None else 0.0
        lost_s = self._incidents_s + self._wasted_s + self._still_s + open_s
        still_s = max(0.0, now - self._moved_at - self._step_s)
        return Times(trained_s=trained_s, good_s=max(0.0, trained_s - lost_s), still_s=still_s)
