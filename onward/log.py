"""Logging that never touches the root logger: a training process belongs to its user."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator

_FORMAT = "%(asctime)s.%(msecs)03d onward[%(process)d] %(levelname).1s %(message)s"
_ON_SCREEN = "%(asctime)s onward: %(message)s"  # as everything else that `onward run` shows
_TIME = "%H:%M:%S"


def get_logger(name: str) -> logging.Logger:
    """A logger below `onward`, with a handler on that branch alone. ONWARD_LOG sets the level."""
    branch = logging.getLogger("onward")
    if not branch.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(_FORMAT, _TIME))
        branch.addHandler(handler)
        branch.propagate = False
        _set_level(branch, logging.WARNING)
    return logging.getLogger(name if name.startswith("onward") else f"onward.{name}")


def tell_all() -> None:
    """In a process that has no other voice: what it does is logged, unless ONWARD_LOG says otherwise."""
    _set_level(get_logger("onward"), logging.INFO)


def _set_level(branch: logging.Logger, default: int) -> None:
    wanted = os.environ.get("ONWARD_LOG", "")
    branch.setLevel(default)
    try:
        branch.setLevel(wanted.upper() or default)
    except ValueError:  # a slip there must not end what it was set for
        branch.warning("ONWARD_LOG=%s is no level: DEBUG, INFO, WARNING and ERROR are", wanted)


def as_on_screen() -> None:
    """The lines of this process are shown among those of `onward run`, and look like them."""
    for handler in logging.getLogger("onward").handlers:
        handler.setFormatter(logging.Formatter(_ON_SCREEN, _TIME))


class _Teller(logging.Handler):
    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(self.format(record))


@contextlib.contextmanager
def told_to(tell: Callable[[str], None]) -> Iterator[None]:
    """Meanwhile what this process logs is told by somebody else, who says the time and who speaks."""
    branch = logging.getLogger("onward")
    old, branch.handlers = branch.handlers, [_Teller(tell)]
    try:
        yield
    finally:
        branch.handlers = old
