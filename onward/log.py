"""Logging that never touches the root logger: a training process belongs to its user."""

from __future__ import annotations

import logging
import os
import sys

_FORMAT = "%(asctime)s.%(msecs)03d onward[%(process)d] %(levelname).1s %(message)s"


def get_logger(name: str) -> logging.Logger:
    """A logger below `onward`, with a handler on that branch alone. ONWARD_LOG sets the level."""
    branch = logging.getLogger("onward")
    if not branch.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(_FORMAT, "%H:%M:%S"))
        branch.addHandler(handler)
        branch.propagate = False
        branch.setLevel(os.environ.get("ONWARD_LOG", "WARNING").upper())
    return logging.getLogger(name if name.startswith("onward") else f"onward.{name}")


def tell_all() -> None:
    """In a process that has no other voice: what it does is logged, unless ONWARD_LOG says otherwise."""
    get_logger("onward").setLevel(os.environ.get("ONWARD_LOG", "INFO").upper())
