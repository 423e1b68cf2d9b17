"""The live view: the whole job on one screen, redrawn a few times a second.

Drawn by a thread of its own from the latest facts, so that a slow terminal never holds up the launcher. It uses the
terminal's alternate screen, written over from the top and never cleared, so nothing flickers and a resized window is
right with the next drawing; when it ends the terminal is as it was, with the story of the run below.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from onward.agent.conditions import in_words
from onward.agent.observer import JobView, Outcome
from onward.cli.screen import tamed
from onward.cli.story import closing, headline, lost, opening, summary, timeline
from onward.core.incident import Incident
from onward.core.words import counted

FRAMES_PER_S = 8
KEPT_LINES = 200
LINES_AFTER = 12  # of the ranks' output, printed again when the view ends
RATE_WINDOW_S = 5.0
_HUES = ("cyan", "green", "yellow", "magenta", "blue")
RANK_STYLES = (*_HUES, *(f"bright_{hue}" for hue in _HUES))  # the same as RANK_COLOURS
PHASE_STYLES = {"Running": "green", "Succeeded": "green", "Finishing": "green", "Failed": "red"}


def rank_style(rank: int) -> str:
    return RANK_STYLES[rank % len(RANK_STYLES)]


@dataclass
class Scene:
    """All that a drawing shows."""

    title: str = ""
    view: JobView | None = None
    incidents: list[Incident] = field(default_factory=list)  # closed ones
    now_open: Incident | None = None
    lines: deque[Text] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    history: deque[tuple[float, int]] = field(default_factory=deque)  # (when, step), for the rate

    def see(self, view: JobView) -> None:
        now = view.elapsed_s
        if self.history and view.step < self.history[-1][1]:
            self.history.clear()
        if not self.history or view.step > self.history[-1][1]:
            self.history.append((now, view.step))
        while len(self.history) > 2 and now - self.history[0][0] > RATE_WINDOW_S:
            self.history.popleft()
        self.view = view

    @property
    def rate(self) -> float:
        """Steps a second, over the last few seconds."""
        if len(self.history) < 2 or self.view is None:
            return 0.0
        (then, first), (_, last) = self.history[0], self.history[-1]
        return (last - first) / max(self.view.elapsed_s - then, 1e-6)


# ---------------------------------------------------------------------------------------------------- parts


def one_line(*parts: str | tuple[str, str]) -> Text:
    """Words and (words, style) on one line that is cut where the screen ends."""
    return Text.assemble(*parts, overflow="ellipsis", no_wrap=True)


def header(view: JobView) -> Text:
    phase = PHASE_STYLES.get(view.phase, "yellow")
    restarts = f"   {counted(view.restarts, 'restart')}" if view.restarts else ""
    return one_line(
        (" onward ", "bold reverse"),
        (f"  {view.name}   ", "bold"),
        (view.phase, phase),
        f"   generation {view.generation}   {clock(view.elapsed_s)}",
        (restarts, "yellow"),
    )


def clock(seconds: float) -> str:
    minutes, s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{s:02d}" if hours else f"{minutes}:{s:02d}"


def progress(view: JobView, rate: float) -> RenderableType:
    if not view.library and all(r.stage in ("script", "exited") for r in view.ranks):
        return Text(" no steps to show: the script has not called onward.init()", style="dim")
    if not view.total_steps and not view.step:
        return Text(" waiting for the ranks to come to their first step", style="dim")
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(width=1)
    grid.add_column(ratio=1)
    for _ in range(3):
        grid.add_column(no_wrap=True)
    total = view.total_steps
    steps = f"step {view.step}/{total}" if total else f"step {view.step}"
    pace = f"{rate:.1f} steps/s" if rate >= 0.95 else f"{1 / rate:.1f} s/step" if rate > 0 else ""
    loss = f"loss {view.loss:.4f}" if view.loss is not None else ""
    bar = ProgressBar(total=total or 1, completed=view.step if total else 0, style="grey37", complete_style="green")
    grid.add_row("", bar, Text(steps, "bold"), Text(pace), Text(loss, "bold"))
    return grid


def rank_table(view: JobView, most: int) -> Table:
    """The ranks; when not all fit, those that are not simply training come first."""
    table = Table(box=None, padding=(0, 1), header_style="dim", pad_edge=True)
    for name in ("rank", "pid", "incarnation"):
        table.add_column(name, justify="right")
    table.add_column("stage", min_width=8)
    table.add_column("step", justify="right", min_width=6)
    table.add_column("compute", justify="right")
    table.add_column("spare pid", justify="right")
    slow = {c.rank for c in view.conditions if c.kind == "slow"}
    shown = list(view.ranks)
    if len(shown) > most:
        shown = sorted(sorted(shown, key=lambda r: r.stage == "training")[: max(most - 1, 1)], key=lambda r: r.rank)
    for r in shown:
        table.add_row(
            Text(str(r.rank), rank_style(r.rank)),
            str(r.pid or "-"),
            Text(str(r.incarnation), "yellow" if r.incarnation > 1 else ""),
            Text(r.stage, "green" if r.stage in ("training", "done") else "red" if r.stage == "exited" else "yellow"),
            str(r.step) if r.step >= 0 else "-",
            Text(f"{r.compute_s * 1000:.0f} ms" if r.compute_s else "-", "yellow" if r.rank in slow else ""),
            Text(str(r.spare_pid) if r.spare_pid else "-", "dim"),
        )
    if len(shown) < len(view.ranks):
        table.add_row("…", f"{len(view.ranks) - len(shown)} more")
    return table


def incident_lines(incidents: list[Incident], now_open: Incident | None, most: int) -> list[Text]:
    """Two lines for each incident, the latest last."""
    lines: list[Text] = []
    kept = incidents[-max(most - (now_open is not None), 0) :] if most else []
    for i in kept:
        lines.append(one_line(f"  {i.number:>2}  {headline(i)}"))
        end = ", ".join(text for text in (i.policy if i.mended else "given up", lost(i)) if text)
        took = (f"      {i.total_ms:.0f} ms", "green" if i.mended else "red")
        lines.append(one_line(took, f"  =  {timeline(i)}", (f"   ({end})", "dim")))
    if now_open is not None:
        lines.append(one_line((f"  {opening(now_open)}", "yellow")))
    return lines


def standing(view: JobView) -> Text:
    lost = (f"   {counted(view.steps_lost, 'step')} lost", "red" if view.steps_lost else "green")
    return one_line((f" {counted(view.incidents, 'incident')}", "bold"), lost, f"   goodput {view.goodput:.1%}")


def condition_lines(view: JobView, most: int) -> list[Text]:
    """What is the matter with nodes and ranks."""
    lines = [one_line((f"  {in_words(c)}", "yellow")) for c in view.conditions[:most]]
    left = len(view.conditions) - most
    return [*lines, one_line((f"  and {left} more", "yellow"))] if left > 0 else lines


def draw(scene: Scene, height: int) -> RenderableType:
    """The whole screen; what does not fit is left out, the log first."""
    view = scene.view
    if view is None:
        return Group(Text(" onward ", style="bold reverse"), one_line((f" {scene.title}", "dim")))
    most_ranks = max(2, min(len(view.ranks), height - 12))
    room = height - 7 - min(most_ranks, len(view.ranks))
    conditions = condition_lines(view, 3)
    room -= len(conditions)
    incidents = incident_lines(scene.incidents, scene.now_open, max(1, min(6, (room - 4) // 2)))
    parts: list[RenderableType] = [
        header(view),
        one_line((f" {scene.title}", "dim")),
        progress(view, scene.rate),
        Text(),
        rank_table(view, most_ranks),
        Text(),
        standing(view),
        *conditions,
        *incidents,
    ]
    left = height - 8 - min(most_ranks, len(view.ranks)) - len(incidents) - len(conditions)
    if left >= 2:
        parts.append(Rule(style="grey37"))
        parts += list(scene.lines)[-(left - 1) :]
    return Group(*parts)


# ---------------------------------------------------------------------------------------------------- the screen


class LiveScreen:
    """Observer calls only change the scene; the drawing thread looks at it."""

    def __init__(self, stream: TextIO, epilogue: bool = True) -> None:
        self._console = Console(file=stream, highlight=False)
        self._epilogue = epilogue  # tell the story of the run once more when the view ends
        self._outcome: Outcome | None = None
        self._scene = Scene()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._live = Live(
            console=self._console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            get_renderable=self._render,
        )
        self._live.start()
        self._thread = threading.Thread(target=self._draw, name="onward-live", daemon=True)
        self._thread.start()

    def _render(self) -> RenderableType:
        with self._lock:
            return draw(self._scene, self._console.height)

    def _draw(self) -> None:
        while not self._stop.wait(1 / FRAMES_PER_S):
            try:
                self._live.refresh()
            except OSError:
                return  # the terminal is gone; training is not

    def begin(self, title: str) -> None:
        with self._lock:
            self._scene = Scene(title=title)

    def line(self, rank: int, stream: str, text: str) -> None:
        self._add(one_line((f" [rank {rank}] ", rank_style(rank)), tamed(text)))

    def note(self, text: str) -> None:
        self._add(one_line((f" {time.strftime('%H:%M:%S')} ", "dim"), f"onward: {tamed(text)}"))

    def detail(self, text: str) -> None:
        pass

    def _add(self, line: Text) -> None:
        with self._lock:
            self._scene.lines.append(line)

    def incident(self, incident: Incident, is_open: bool) -> None:
        with self._lock:
            self._scene.now_open = incident if is_open else None
            if not is_open:
                self._scene.incidents.append(incident)

    def status(self, view: JobView) -> None:
        with self._lock:
            self._scene.see(view)

    def finish(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def close(self) -> None:
        """Give the terminal back, and leave on it what a person wants to keep."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join(5.0)
        self._live.stop()
        if self._epilogue and self._outcome is not None:
            for line in list(self._scene.lines)[-LINES_AFTER:]:
                self._console.print(line, soft_wrap=True)
            for incident in self._outcome.incidents:
                self._console.print("\n".join(closing(incident)), markup=False, soft_wrap=True)
            self._console.print(summary(self._outcome), markup=False, soft_wrap=True)
