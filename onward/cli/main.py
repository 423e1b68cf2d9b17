"""`onward ...`: one command, a verb each."""

from __future__ import annotations

import asyncio
import sys

from onward.cli.flags import RUN_HELP, HelpRequested, parse_run
from onward.errors import OnwardError, UsageError


def main(argv: list[str] | None = None) -> int:
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        if args and args[0] == "run":
            return _run(args[1:])
        print("usage: onward run [flags] SCRIPT [args]")
        return 2
    except HelpRequested:
        print(RUN_HELP)
        return 0
    except UsageError as e:
        for problem in e.problems:
            print(f"onward: {problem}", file=sys.stderr)
        return 2
    except OnwardError as e:
        print(f"onward: {e}", file=sys.stderr)
        return 1


def _run(args: list[str]) -> int:
    import os

    from onward.agent.chaos import parse_chaos
    from onward.agent.launcher import Launcher
    from onward.cli.screen import PlainScreen, banner

    settings = parse_run(args, os.environ)
    injections = parse_chaos(settings.chaos, settings.nproc * settings.max_nodes)
    screen = PlainScreen(settings.quiet)

    async def go() -> int:
        launcher = Launcher(settings, screen, injections)
        outcome = await launcher.run()
        screen.finish(outcome)
        if outcome.root_cause is not None:
            print(banner(outcome), file=sys.stderr)
        return outcome.exit_code

    return asyncio.run(go())


if __name__ == "__main__":
    sys.exit(main())
