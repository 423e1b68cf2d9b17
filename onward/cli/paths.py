"""Files that are not there, and what may have been meant."""

from __future__ import annotations

import os

from onward.core.policy import closest


def meant(path: str) -> str:
    """The end of a sentence; empty when nothing in its directory is like it."""
    directory, name = os.path.split(path)
    try:
        found = closest(name, os.listdir(directory or "."))
    except (OSError, ValueError):
        return f"; there is no directory {directory or '.'}"
    return f"; did you mean {os.path.join(directory, found)}?" if found else ""
