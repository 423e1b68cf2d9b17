"""Whatever onward says on the screen of a run looks the same, also what is logged."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from onward.agent.observer import Diary
from onward.cli.screen import PlainScreen
from onward.core.facts import FaultReport
from onward.core.incident import Incident
from onward.log import get_logger, told_to

LINE = r"\d\d:\d\d:\d\d onward: "
RANK = """
from onward.log import as_on_screen, get_logger
log = get_logger("onward.train")
as_on_screen()
log.warning("no checkpoint of step %d", 20)
"""


def test_what_the_launcher_logs_is_told_as_a_note() -> None:
    told: list[str] = []
    log = get_logger("onward.agent")
    before = list(logging.getLogger("onward").handlers)
    with told_to(told.append):
        log.warning("a connection was refused: %s", "why")
    assert told == ["a connection was refused: why"]
    assert logging.getLogger("onward").handlers == before


def test_a_level_that_is_none_is_told_and_ends_nothing() -> None:
    env = {**os.environ, "ONWARD_LOG": "loud"}
    p = subprocess.run([sys.executable, "-c", RANK], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert "ONWARD_LOG=loud is no level: DEBUG, INFO, WARNING and ERROR are" in p.stderr
    assert "no checkpoint of step 20" in p.stderr, "as where nothing is set"


def test_an_incident_in_the_events_log_is_told_once_and_ends_with_the_reason(tmp_path: Path) -> None:
    diary = Diary(PlainScreen(quiet=True), tmp_path / "events.log")
    killed = FaultReport("signal", 2, 1, step=50, text="SIGKILL")
    opened = Incident(number=1, faults=(killed,), step=50, opened_at=10.0).decided("exit", "restarting all 4 ranks")
    bug = "the same error came back at the same step: this is an error in the script"
    diary.incident(opened, True)
    diary.incident(opened.decided("exit", "starting from the beginning"), True)
    diary.incident(replace(opened.decided("exit", "starting from the beginning").closed(11.0), lost=50), False)
    diary.incident(replace(opened, number=2).decided("exit", bug).given_up(12.0), False)
    first, over, lost = (line.split(" ", 2)[2] for line in (tmp_path / "events.log").read_text().splitlines())
    assert first == "incident 1 open: rank 2 killed (SIGKILL)"
    assert over.startswith("incident 1 over after 1000 ms")
    assert over.endswith("rank 2 killed (SIGKILL); starting from the beginning; 50 steps lost")
    assert lost.startswith("incident 2 given up after 2000 ms")
    assert lost.endswith(bug)


def test_what_a_rank_logs_looks_like_a_note() -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", RANK], env=env, capture_output=True, text=True, timeout=60)
    assert re.fullmatch(LINE + "no checkpoint of step 20\n", done.stderr), done.stderr
