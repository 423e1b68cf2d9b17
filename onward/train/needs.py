"""Which torch the library can work with."""

from __future__ import annotations

import re
import sys

import torch

from onward.errors import UsageError

OLDEST = (2, 7)  # before it a wait in C++ does not find an operation that is written in Python, and gloo has no abort


def check() -> None:
    """UsageError for a torch that is too old. Comes before anything is imported that an old one does not have."""
    version = str(torch.__version__)
    if too_old(version):
        raise UsageError(
            f"torch {version} ({sys.executable}) is too old for onward's library, which needs "
            f"{'.'.join(map(str, OLDEST))} or newer: install that, or leave the library out: `onward run` "
            "then restarts all ranks on a failure, as torchrun does"
        )


def too_old(version: str) -> bool:
    """`version` as torch says it, with whatever its builder has put behind the numbers."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    return len(numbers) == 2 and numbers < OLDEST
