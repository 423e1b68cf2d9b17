"""One command line of `onward run`, taken apart: which flags are given and where, and what is wrong with them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from onward.cli.flag_table import BY_SPELLING, FLAGS, IGNORED, PLACE, REPEATABLE, TORCHRUN, Flag
from onward.core.policy import closest, did_you_mean
from onward.errors import UsageError

_T = TypeVar("_T")


class HelpRequested(Exception):
    """`-h` or `--help` was given: print RUN_HELP and exit 0."""


class Line:
    """The flags of one command line, each with where it came from, and the problems found so far."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.problems: list[str] = []
        self.swallowed = False  # a word after an unknown flag was taken for its value; it may have been the script
        self.given: dict[str, list[tuple[str, str]]] = {}  # name -> ("--flag " or "VARIABLE=", value)
        for flag in FLAGS:
            for variable in flag.env:
                if flag.name not in self.given and env.get(variable, "").strip():
                    self.given[flag.name] = [(f"{variable}=", env[variable])]

    def scan(self, argv: Sequence[str]) -> tuple[str, tuple[str, ...]]:
        """Take the flags up to the script; return the script and its arguments."""
        rest = list(argv)
        while rest:
            word = rest.pop(0)
            if word == "--":
                break
            if not _is_flag(word):
                return word, tuple(rest)
            self._take(word, rest)
        return (rest[0], tuple(rest[1:])) if rest else ("", ())

    def _take(self, word: str, rest: list[str]) -> None:
        spelt, value = _split(word)
        flag = _find(spelt)
        if flag is None:
            self._refuse(spelt, value, rest)
        elif flag.name == "help":
            raise HelpRequested
        elif not flag.value and value is not None:
            self.problems.append(f"{word}: this is a switch and takes no value; write {spelt} alone, or leave it out")
        elif flag.value and value is None and not (rest and _can_be_value(rest[0])):
            self.problems.append(f"{spelt} needs a value; write {spelt} {flag.value}")
        else:
            if flag.value and value is None:
                value = rest.pop(0)
            earlier = self.given.get(flag.name, []) if flag.name in REPEATABLE else []
            self.given[flag.name] = [*earlier, (f"{spelt} ", "1" if value is None else value)]

    def _refuse(self, spelt: str, value: str | None, rest: list[str]) -> None:
        dashed = [name[2:] for name in BY_SPELLING if name.startswith("--")]
        name = closest(spelt.lstrip("-"), dashed + [name.replace("-", "_") for name in dashed])
        meant = _find(f"--{name}") if name else None
        hint = f"; did you mean --{name}?" if name else ""
        self.problems.append(f"unknown flag {spelt}{hint} (onward run --help lists all flags)")
        # Its value, if it has one, must not be taken for the script and be reported as a missing file.
        takes_value = value is None and (meant is None or bool(meant.value))
        if takes_value and rest and not _is_flag(rest[0]) and not os.path.isfile(rest[0]):
            rest.pop(0)
            self.swallowed = True

    def of_pod(self, name: str) -> bool:
        """Whether this was told by those who made the pod, and by nobody else."""
        return name in self.given and self.given[name][-1][0].startswith("ONWARD_")

    def leave_pod(self, env: Mapping[str, str]) -> None:
        """A line that is not about the pod's job, but about one of its own, does not take the pod's place in it."""
        nodes = self.text("nnodes", "")
        most, of_pod = (text.rpartition(":")[2].strip() for text in (nodes, env.get("ONWARD_NNODES", nodes)))
        if "standalone" in self.given or most != of_pod:
            for name in (*PLACE, "manager"):
                if self.of_pod(name):
                    del self.given[name]

    def text(self, name: str, default: str) -> str:
        return self.given[name][-1][1].strip() if name in self.given else default

    def problem(self, name: str, what: str) -> None:
        where, value = self.given[name][-1]
        self.problems.append(f"{where}{value}: {what}")

    def switch(self, name: str) -> bool:
        def read(text: str) -> bool:
            if not re.fullmatch(r"[0-9]{1,10}", text):
                raise UsageError("not 0 or 1; set it to 1 for on, 0 for off")
            return int(text) != 0  # as torchrun reads the variables of its switches

        return self.convert(name, "0", read, False)

    def whole(self, name: str, default: int, high: int = 2**31 - 1) -> int:
        def read(text: str) -> int:
            if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) > high:
                raise UsageError(f"not a whole number from 0 to {high}; give one")
            return int(text)

        return self.convert(name, str(default), read, default)

    def seconds(self, name: str, default: float, zero_allowed: bool = True) -> float:
        def read(text: str) -> float:
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if not math.isfinite(value) or value < 0 or (value == 0 and not zero_allowed):
                least = "0 or more" if zero_allowed else "more than 0"
                raise UsageError(f"not a number of seconds; give {least}, or leave it out for {default:g}")
            return value

        return self.convert(name, str(default), read, default)

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        def read(text: str) -> str:
            if text not in choices:
                raise UsageError(f"not one of {', '.join(choices)}{did_you_mean(text, choices)}")
            return text

        return self.convert(name, default, read, default)

    def convert(self, name: str, default: str | None, read: Callable[[str], _T], otherwise: _T) -> _T:
        """The value as `read` understands it; a UsageError of `read` becomes a problem of this flag.

        `otherwise` stands for a value that is wrong, and for one that was not given where there is no default.
        """
        if default is None and name not in self.given:
            return otherwise
        try:
            return read(self.text(name, default or ""))
        except UsageError as error:
            for what in error.problems:
                self.problem(name, what)
            return otherwise

    def convert_each(self, name: str, read: Callable[[str], _T]) -> tuple[_T, ...]:
        """The same for a flag that may be repeated."""
        values = []
        for where, text in self.given.get(name, ()):
            try:
                values.append(read(text))
            except UsageError as error:
                self.problems += [f"{where}{text}: {what}" for what in error.problems]
        return tuple(values)


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-"


def _can_be_value(word: str) -> bool:
    """As argparse judges: not a flag, but a negative number is better reported as a wrong value."""
    return not _is_flag(word) or re.fullmatch(r"-[0-9.]+", word) is not None


def _split(word: str) -> tuple[str, str | None]:
    """`--flag=value`, `-r3` and `-r=3` into flag and value; the value is None where there is none."""
    short = word[:2]
    if short in BY_SPELLING and BY_SPELLING[short].value and len(word) > 2:
        return short, word[2:].removeprefix("=")
    spelt, equals, value = word.partition("=")
    return spelt, value if equals else None


def _find(spelt: str) -> Flag | None:
    """The flag that is spelt like this. Like torchrun, take an abbreviation of its flags that means only one."""
    name = spelt.replace("_", "-")
    if name in BY_SPELLING or not name.startswith("--"):
        return BY_SPELLING.get(name)
    begins = [flag for flag in TORCHRUN + IGNORED if f"--{flag.name}".startswith(name)]
    return begins[0] if len(begins) == 1 else None
