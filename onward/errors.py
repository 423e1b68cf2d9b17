"""One exception tree.

Everything onward raises on purpose derives from OnwardError, except `Unwind`: it takes the user's code back to the
fence of the current step, so it must pass through a user's `except Exception`.
"""

from __future__ import annotations

from collections.abc import Sequence


class OnwardError(Exception):
    """Base of every error that onward raises on purpose."""


class UsageError(OnwardError):
    """The input is wrong. Carries every problem found, so that one run shows them all."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class WireError(OnwardError):
    """A peer sent something that is not one of our messages, or the connection broke."""


class HungUp(WireError):
    """The peer closed the connection. Between frames that is no offence."""


class StateError(OnwardError):
    """Protected state cannot be read, moved or restored."""


class Unwind(BaseException):
    """Raised inside a step to take the user's code back to the fence; never seen by users."""
