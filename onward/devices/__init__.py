"""The devices room: what each vendor's hardware looks like from outside, one file of data for each vendor.

It answers two questions: how many devices are here, and is this exception the fault of hardware or network (then the
step can be redone) or the program's own (then it must surface). It is not a driver: nothing here calls torch or touches
a device, so it is safe to import in the agent and before a fork.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from onward.devices import cpu, cuda, npu
from onward.devices.base import ErrorPattern, Vendor, communication, count_devices
from onward.errors import UsageError

__all__ = ["ALL", "ErrorPattern", "Vendor", "check_patterns", "classify_error", "count_devices"]

ALL: tuple[Vendor, ...] = (cpu.VENDOR, cuda.VENDOR, npu.VENDOR)

# An exception can carry megabytes. What it is about stands at its start or at its end.
_TEXT_END_CHARS = 4096

# The program's own errors, also when a watchdog or NCCL wraps them in words that look like a broken network. ("enable
# device-side assertions", which torch appends to every CUDA error, is advice and no assertion.)
_USER_ERROR = re.compile(
    r"out of memory|\b(?:OutOf)?MemoryError\b|device-side assert triggered|\bncclInvalid(?:Usage|Argument)\b",
    re.IGNORECASE,
)

_Compiled = tuple[tuple[re.Pattern[str], ErrorPattern], ...]


def _compiled(patterns: Iterable[ErrorPattern]) -> _Compiled:
    return tuple((re.compile(pattern.pattern, re.IGNORECASE), pattern) for pattern in patterns)


# Memory first: an ECC error often arrives in the words of a communicator that died of it, and the graver cure wins.
_PATTERNS = [pattern for vendor in ALL for pattern in vendor.error_patterns]
_KNOWN = _compiled(sorted(_PATTERNS, key=lambda pattern: pattern.kind != "memory"))


def classify_error(exc_type: str, text: str, extra: Sequence[str] = ()) -> ErrorPattern | None:
    """Why this exception is retryable, or None when it is the program's own. `text` is the message, without traceback.

    `extra` are regular expressions that the user registered; they also overrule the refusal to retry a user error.
    """
    if len(text) > 2 * _TEXT_END_CHARS:
        text = f"{text[:_TEXT_END_CHARS]}\n{text[-_TEXT_END_CHARS:]}"
    full = f"{exc_type[:256]}: {text}"
    candidates = _registered(tuple(extra))
    if not _USER_ERROR.search(full):
        candidates = _KNOWN + candidates
    return next((pattern for regex, pattern in candidates if regex.search(full)), None)


def check_patterns(extra: Sequence[str]) -> None:
    """Refuse regular expressions that cannot be used; all of them are named in one UsageError."""
    problems = []
    for expression in extra:
        if not expression.strip():
            problems.append("an empty pattern would make every error retryable; give part of the error's text")
            continue
        try:
            re.compile(expression, re.IGNORECASE)
        except (re.error, OverflowError, RecursionError) as error:
            problems.append(f"{expression!r} is not a regular expression ({error}); put \\ before literal signs")
    if problems:
        raise UsageError(problems)


@lru_cache(maxsize=64)
def _registered(extra: tuple[str, ...]) -> _Compiled:
    check_patterns(extra)
    return _compiled(communication(expression, "registered by the user") for expression in extra)
