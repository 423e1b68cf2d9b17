"""The recovery policies: the rungs of the ladder, in the one order in which they are tried.

Users name the policies they allow (the annotation `recover-strategy`, the flag `--recover-strategy`). The order of
the names means nothing: the ladder goes from the cheapest cure to the dearest, and `exit` always ends it, because a
fault that nothing else cures has to end somewhere. A misspelt name is refused: a policy that is silently missing would
only be noticed on the day it was needed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import Enum

from onward.errors import UsageError


class Policy(str, Enum):
    """One way to cure a fault. The order of definition is the ladder."""

    RETRY = "retry"  # no process ends; the step is redone
    RECOVER_IN_PLACE = "recover-in-place"  # only the dead process is replaced, in its pod
    RECOVER = "recover"  # the pod is replaced on another node
    ELASTIC = "elastic-training"  # the world shrinks until there is room again
    DUMP = "dump"  # a surviving copy is saved, the job starts again from it
    EXIT = "exit"  # the job starts again from its periodic checkpoint, or fails

    # Python 3.10 and 3.11 format a member of (str, Enum) differently; users should see the name they wrote.
    __str__ = str.__str__


SHORT = 5  # letters
DEFAULT_POLICIES = "retry,recover-in-place,recover,dump,exit"


def parse_policies(text: str) -> tuple[Policy, ...]:
    """The policies named in a comma separated list, in ladder order, `exit` last. Unknown names are a UsageError.

    So is no name at all: whoever means that nothing is to be mended in place says `exit`.
    """
    names = {part.strip() for part in text.split(",")} - {""}
    known = [policy.value for policy in Policy]
    if not names:
        allowed = f"leave it out for {DEFAULT_POLICIES}, or write exit where all ranks should start again on any fault"
        raise UsageError(f"names no policy; {allowed}")
    unknown = sorted(names.difference(known))
    if unknown:
        listed = f"the policies are {', '.join(known)}"
        raise UsageError([f"unknown policy {name!r}{did_you_mean(name, known)} ({listed})" for name in unknown])
    return tuple(policy for policy in Policy if policy.value in names or policy is Policy.EXIT)


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant."""
    by_lower = {name.lower(): name for name in known}
    lower = word.lower()[:100]
    close = difflib.get_close_matches(lower, by_lower, n=5)
    return next((by_lower[name] for name in close if _near(lower, name)), None)


def _near(word: str, name: str) -> bool:
    """Of a short word two letters in common are no likeness: `foo` is not a slip for `oom`."""
    if min(len(word), len(name)) >= SHORT or word[0] == name[0]:
        return True
    return difflib.SequenceMatcher(None, name, word).ratio() >= 0.75


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'retry'?`, or nothing when no known word is close."""
    meant = closest(word, known)
    return f"; did you mean {meant!r}?" if meant else ""
