"""The ways in which a simulated process, or its main thread, leaves what it is doing."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

Thread = Generator[Any, None, Any]  # a main thread, or a part of one


class Killed(BaseException):
    """The process ended at this point."""


class Hung(BaseException):
    """The main thread goes no further; the process and its listening thread live on."""


class Unwound(Exception):
    """A collective of the step failed."""


class Interrupted(Exception):
    """A newer generation was ordered while waiting for an answer."""


class NotJoined(Exception):
    """A generation could not be joined."""


class ScriptFailed(Exception):
    """The user's script ends with an error."""


class LeftLoop(Exception):
    """The user's script leaves its loop by itself."""


class UserError(Exception):
    """The user's code raised."""

    def __init__(self, text: str, retryable: str) -> None:
        super().__init__(text)
        self.retryable = retryable
