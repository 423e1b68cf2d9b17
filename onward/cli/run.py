"""`onward run`: start a job here and stay with it to its end."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from onward.agent.chaos import parse_chaos
from onward.agent.launcher import Launcher
from onward.agent.observer import Outcome
from onward.agent.settings import RunSettings
from onward.cli.banner import banner
from onward.cli.flags import parse_run
from onward.cli.report import as_json, outcome_object
from onward.cli.screen import Screen, make_screen
from onward.wire.memory import oom_kills
from onward.wire.messages import Injection


def run(argv: Sequence[str]) -> int:
    """The whole command; returns the exit code."""
    settings = parse_run(argv, os.environ)
    injections = parse_chaos(settings.chaos, settings.nproc * settings.nodes)
    kills_before = oom_kills()
    screen = make_screen(settings.view, settings.quiet, settings.output == "json")
    try:
        screen.begin("")
        outcome = run_job(settings, injections, screen)
    finally:
        screen.close()
    oom_killed = oom_kills() > kills_before
    if settings.output == "json":
        print(as_json(outcome_object(outcome, oom_killed)), flush=True)
    elif outcome.root_cause is not None or (outcome.phase == "Failed" and outcome.reason):
        print(banner(outcome, oom_killed), file=sys.stderr, flush=True)
    return outcome.exit_code


def run_job(settings: RunSettings, injections: tuple[Injection, ...], screen: Screen) -> Outcome:
    """Run one job under `screen`, from its first process to its last."""

    async def go() -> Outcome:
        return await Launcher(settings, screen, injections).run()

    outcome = asyncio.run(go())
    screen.finish(outcome)
    return outcome
