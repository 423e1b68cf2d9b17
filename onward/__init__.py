"""onward: distributed training that only moves onward.

    run = onward.init()
    run.protect(model=model, optimizer=optimizer)
    for step in run.steps(1000):
        with step:
            ...

Only `init` is imported eagerly from nothing heavy: torch is touched when it is called, not when onward is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onward.errors import OnwardError, StateError, UsageError

if TYPE_CHECKING:
    from onward.train.run import Run

__version__ = "0.1.0"
__all__ = ["OnwardError", "StateError", "UsageError", "init"]


def init(**options: Any) -> Run:
    """Join the job: connect to the launcher, build the process group, and return the run."""
    from onward.train.needs import check

    check()
    from onward.train.run import start

    return start(**options)
