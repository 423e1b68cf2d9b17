"""How a process of the cluster lives: it works until SIGTERM comes, and says in one line why it ended otherwise."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Coroutine
from typing import Any

from onward.errors import OnwardError

LONGEST_LINE = 1 << 20
"""Of a request: commands and selectors travel in it, and a real server takes a megabyte."""


def open_many_files() -> None:
    """As many as we may: each connection is one. Not for processes that start others, who would have it from them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run(name: str, work: Coroutine[Any, Any, None], told: tuple[type[Exception], ...] = (OnwardError,)) -> int:
    """The exit code of `work`. What is `told` in one line are errors that need no traceback."""

    async def until_sigterm() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await work

    try:
        asyncio.run(until_sigterm())
    except told as e:
        print(f"onward {name}[{os.getpid()}]: {e}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 0
    return 0
