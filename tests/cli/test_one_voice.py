"""Whatever onward says on the screen of a run looks the same, also what is logged."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

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


def test_what_a_rank_logs_looks_like_a_note() -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", RANK], env=env, capture_output=True, text=True, timeout=60)
    assert re.fullmatch(LINE + "no checkpoint of step 20\n", done.stderr), done.stderr
