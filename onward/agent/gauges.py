"""The ranks' status pages, as the agent reads them: they tell of a process also when it is stopped or dead."""

from __future__ import annotations

import time

from onward.agent.busy import RunQueue, Standstill
from onward.agent.facts import Process
from onward.core.facts import Progress
from onward.core.health import own_idle_s
from onward.wire.page import Page

SILENT_S = 0.5  # who has shown no life for so long may be stopped: the kernel is asked


class Gauges:
    """One page for each process, from its start to its end."""

    def __init__(self) -> None:
        self.top_step = 0  # that any rank here has come to
        self.total_steps = 0
        self._pages: dict[int, Page] = {}
        self._queues: dict[int, RunQueue] = {}
        self._standstills: dict[int, Standstill] = {}

    def open(self, number: int, path: str) -> None:
        self._pages[number] = Page(path)

    def started(self, number: int, pid: int) -> None:
        self._queues[number] = RunQueue(pid)
        self._standstills[number] = Standstill(pid)

    def close(self, number: int) -> None:
        self._pages.pop(number, None)
        self._queues.pop(number, None)
        self._standstills.pop(number, None)

    def page(self, number: int) -> Page | None:
        return self._pages.get(number)

    def read(self, p: Process) -> None:
        """Bring what is known of its progress up to date."""
        page, now = self._pages.get(p.number), time.monotonic_ns()
        if page is None:
            return
        queue = self._queues.get(p.number)
        queued_s = queue.since(page.get("progress_ns")) if queue is not None else 0.0
        p.progress = Progress(
            step=page.get("step"),
            launched=page.get("launched"),
            pending_s=page.age_s("launched_ns", now),
            beat_s=page.age_s("beat_ns", now),
            stopped_s=self._stopped_s(p.number, page, now),
            idle_s=own_idle_s(page.age_s("progress_ns", now), queued_s),
            section=page.get("section") > 0,
            step_s=page.get("step_ns") / 1e9,
            gate=page.get("gate") > 0,
            compute_s=page.get("compute_ns") / 1e9,
            queued_s=page.get("queued_ns") / 1e9,
            inside=page.get("inside") > 0,
        )
        self.top_step = max(self.top_step, p.progress.step if not p.spare else 0)
        self.total_steps = max(self.total_steps, page.get("total"))

    def _stopped_s(self, number: int, page: Page, now_ns: int) -> float:
        standstill, silent_s = self._standstills.get(number), page.age_s("beat_ns", now_ns)
        if standstill is None or (page.get("beat_ns") and silent_s < SILENT_S):
            return 0.0
        lasts = standstill.lasts(now_ns / 1e9)
        return max(lasts, silent_s) if lasts else 0.0
