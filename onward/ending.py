"""How a command ends: its errors become lines for people, and an exit code for programs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from onward.errors import OnwardError, UsageError


def exit_code_of(command: Callable[[], int]) -> int:
    """Run `command`. 2 stands for a wrong input, 1 for another error; an end from outside is told as shells do."""
    try:
        return command()
    except UsageError as e:
        for problem in e.problems:
            print(f"onward: {problem}", file=sys.stderr)
        return 2
    except OnwardError as e:
        print(f"onward: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # its reader is gone; do not complain again at exit
        return 141
    finally:
        _turn_deaf()


def _turn_deaf() -> None:
    """The code is settled. As it ends, Python takes back the handlers of a command, and a late signal would kill us."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        handler = signal.getsignal(number)
        if callable(handler) and handler is not signal.default_int_handler:
            signal.signal(number, signal.SIG_IGN)
