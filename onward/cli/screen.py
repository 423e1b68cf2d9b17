"""What a run looks like as lines: a rank in front of what it says, incidents with their timeline, a summary."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from typing import Protocol, TextIO

from onward.agent.observer import JobView, Observer, Outcome
from onward.cli.pen import Pen
from onward.cli.story import closing, first_words, opening, summary
from onward.core.incident import Incident

RANK_COLOURS = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)  # as in ANSI; a rank keeps its own
ECHO_S = 0.25  # a broken connection is mostly the echo of something worse: wait so long for the cause

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")


class Screen(Observer, Protocol):
    """An observer that people look at."""

    def begin(self, title: str) -> None:
        """A job starts."""

    def finish(self, outcome: Outcome) -> None:
        """It has ended."""

    def close(self) -> None:
        """Give the terminal back."""


def colours_wanted(stream: TextIO, env: Mapping[str, str] = os.environ) -> bool:
    """On a terminal only, and not against the user's will (no-color.org)."""
    return stream.isatty() and not env.get("NO_COLOR") and env.get("TERM") != "dumb"


def last_words(text: str) -> str:
    """A line as a terminal would show it in the end: progress bars draw over themselves."""
    return text.rstrip("\r").rsplit("\r", 1)[-1]


def tamed(text: str) -> str:
    """Without anything that could move a cursor: a rank's output must not draw on our screen."""
    return _CONTROLS.sub("", _ESCAPES.sub("", last_words(text)).expandtabs())


class PlainScreen:
    """Lines, for pipes, logs and CI, and for terminals where nothing should be redrawn."""

    def __init__(self, quiet: bool = False, out: TextIO = sys.stdout, err: TextIO = sys.stderr) -> None:
        self._quiet = quiet
        self._streams = {"out": out, "err": err}
        self._colour = {name: colours_wanted(stream) for name, stream in self._streams.items()}
        self._pen = Pen()
        self._opened: dict[int, list[str]] = {}  # what was said of each incident when it opened
        self._introduced = ""
        self._held: tuple[Incident, float] | None = None  # an incident whose cause is not clear yet, and since when

    def begin(self, title: str) -> None:
        if title:
            self.note(title)

    def line(self, rank: int, stream: str, text: str) -> None:
        prefix = f"[rank {rank}]"
        if self._colour[stream]:
            prefix = f"\x1b[{RANK_COLOURS[rank % len(RANK_COLOURS)]}m{prefix}\x1b[0m"
        self._pen.write(self._streams[stream], f"{prefix} {last_words(text)}")

    def note(self, text: str) -> None:
        if not self._quiet:
            self._write(text)

    def detail(self, text: str) -> None:
        pass

    def incident(self, incident: Incident, is_open: bool) -> None:
        if self._quiet:
            return
        if not is_open:
            self._held = None
            said = self._opened.get(incident.number, ())
            self._block(closing(incident, said), "32" if incident.mended else "31")
        elif incident.number not in self._opened:
            since = self._held[1] if self._held is not None else time.monotonic()
            self._held = (incident, since)
            if incident.root_cause.retryable != "communication":
                self._open()

    def _open(self) -> None:
        if self._held is not None:
            self._opened[self._held[0].number] = first_words(self._held[0])
            self._block([opening(self._held[0])], "33")
            self._held = None

    def status(self, view: JobView) -> None:
        if view.log_dir != self._introduced:
            self._introduced = view.log_dir
            self.note(f"job {view.name}: logs in {view.log_dir}")
        if self._held is not None and time.monotonic() - self._held[1] >= ECHO_S:
            self._open()

    def finish(self, outcome: Outcome) -> None:
        self.note(summary(outcome))

    def close(self) -> None:
        self._pen.close()

    def _block(self, lines: list[str], colour: str) -> None:
        if not lines:
            return
        first, *rest = lines
        self._write(f"\x1b[{colour}m{first}\x1b[0m" if self._colour["err"] else first)
        for line in rest:
            self._pen.write(self._streams["err"], f"         {line}")

    def _write(self, text: str) -> None:
        stamp = time.strftime("%H:%M:%S")
        if self._colour["err"]:
            stamp = f"\x1b[2m{stamp}\x1b[0m"
        self._pen.write(self._streams["err"], f"{stamp} onward: {text}")


def make_screen(view: str, quiet: bool, json: bool, epilogue: bool = True) -> Screen:
    """The screen that was asked for, as far as the terminal can show it. With JSON, stdout belongs to the JSON."""
    out = sys.stderr if json else sys.stdout
    able = out.isatty() and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if able and not quiet and (view == "live" or (view == "auto" and not json)):
        from onward.cli.live import LiveScreen

        return LiveScreen(out, epilogue)
    return PlainScreen(quiet, out)
