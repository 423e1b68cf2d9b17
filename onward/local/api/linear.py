"""Regular expressions in a time that grows with the text and nothing else, as RE2 has it.

Python's `re` tries one way after the other, and an expression like `^(a+)+$` has more ways than anybody can wait for:
the server would stand still. Here all ways are followed at once. The parser is that of `re`, as are single characters.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
compiler: Any = importlib.import_module("re._compiler" if sys.version_info >= (3, 11) else "sre_compile")

SHORT, FEW = 256, 2
"""`re` is faster, and fast enough, for a text so short and an expression with so few choices."""
LARGEST = 20_000  # states
REMEMBERED = 20_000  # steps
REPEATS = ("MAX_REPEAT", "MIN_REPEAT")
CHARACTERS = ("LITERAL", "NOT_LITERAL", "ANY", "IN")

Test = Callable[[str], Any]
States = frozenset[int]


class Expression:
    """Has `search`, as a compiled expression of `re` has. Raises re.error for what cannot be searched like this."""

    def __init__(self, text: str, flags: int) -> None:
        self._fast = re.compile(text, flags)
        tree = parser.parse(text, flags)
        self._few = _choices(tree) <= FEW
        self._tests: list[Test | None] = []  # of a state: whether it takes a character,
        self._at: list[str] = []  # or where it must stand,
        self._next: list[list[int]] = []  # and what follows
        self._end = self._state([])
        self._start = self._tree(tree, self._end, tree.state.flags)
        self._steps: dict[tuple[States, str, str | None], tuple[bool, States]] = {}

    def search(self, text: str) -> bool:
        if self._few and 0 < len(text) <= SHORT:  # in no text at all, `re` sees no \B
            return self._fast.search(text) is not None
        states, before = States(), ""
        for character in [*text, None]:
            key = states, before, character
            found = self._steps.get(key)
            if found is None:
                if len(self._steps) >= REMEMBERED:
                    self._steps.clear()
                found = self._steps[key] = self._step(*key)
            over, states = found
            if over:
                return True
            before = _kind(character)
        return False

    def _step(self, states: States, before: str, character: str | None) -> tuple[bool, States]:
        """One character further: is it found, and where are we then?"""
        waiting, seen, after = [self._start, *states], set[int](), _kind(character)
        while waiting:
            state = waiting.pop()
            if state in seen:
                continue
            seen.add(state)
            if self._tests[state] is None and PLACES[self._at[state]](before, after):
                waiting += self._next[state]
        if self._end in seen or character is None:
            return self._end in seen, States()
        taken = (s for s in seen if (test := self._tests[s]) is not None and test(character))
        return False, States(following for state in taken for following in self._next[state])

    # What it is made of

    def _state(self, following: list[int], test: Test | None = None, at: str = "") -> int:
        if len(self._next) >= LARGEST:
            raise re.error("expression is too large")
        self._next.append(following)
        self._tests.append(test)
        self._at.append(at)
        return len(self._next) - 1

    def _tree(self, tree: Any, following: int, flags: int) -> int:
        """The state in which it begins."""
        for op, value in reversed(list(tree)):
            following = self._item(op, value, following, flags)
        return following

    def _item(self, op: Any, value: Any, following: int, flags: int) -> int:
        name = str(op)
        if name in CHARACTERS:
            return self._state([following], compiler.compile(_alone(op, value, flags), flags).match)
        if name == "AT":
            at = "AT_BEGINNING_LINE" if str(value) == "AT_BEGINNING" and flags & re.MULTILINE else str(value)
            if at not in PLACES:
                raise re.error(f"{at.lower()} is not supported")
            return self._state([following], at=at)
        if name == "SUBPATTERN":
            _, added, removed, inner = value
            return self._tree(inner, following, (flags | added) & ~removed)
        if name == "BRANCH":
            return self._state([self._tree(inner, following, flags) for inner in value[1]])
        if name in REPEATS:
            least, most, inner = value
            return self._repeat(least, most, inner, following, flags)
        raise re.error(f"{name.lower()} is not supported")

    def _repeat(self, least: int, most: Any, inner: Any, following: int, flags: int) -> int:
        begin = following
        if most == parser.MAXREPEAT:
            begin = self._state([following])
            self._next[begin].append(self._tree(inner, begin, flags))
        else:
            for _ in range(int(most) - least):
                begin = self._state([following, self._tree(inner, begin, flags)])
        for _ in range(least):
            begin = self._tree(inner, begin, flags)
        return begin


def _alone(op: Any, value: Any, flags: int) -> Any:
    """Under the flags that hold there: those of the whole may be others."""
    state = parser.State()
    state.flags = flags
    return parser.SubPattern(state, [(op, value)])


def _choices(tree: Any) -> int:
    """How often there is more than one way to go on; one choice within another counts as many."""
    count = 0
    for op, value in tree:
        inner = sum(_choices(each) for each in _inner(str(op), value))
        if str(op) in REPEATS or str(op) == "BRANCH":
            count += 1 + inner * (FEW + 1)
        else:
            count += inner
    return count


def _inner(name: str, value: Any) -> Iterator[Any]:
    if name in REPEATS:
        yield value[2]
    elif name == "SUBPATTERN":
        yield value[3]
    elif name == "BRANCH":
        yield from value[1]


def _kind(character: str | None) -> str:
    """All that matters of a neighbour: nobody, a line break, part of a word, something else."""
    if character is None:
        return ""
    if character == "\n":
        return "line"
    return "word" if character == "_" or (character.isascii() and character.isalnum()) else "other"


PLACES: dict[str, Callable[[str, str], bool]] = {
    "": lambda before, after: True,
    "AT_BEGINNING": lambda before, after: before == "",
    "AT_BEGINNING_STRING": lambda before, after: before == "",
    "AT_BEGINNING_LINE": lambda before, after: before in ("", "line"),
    "AT_END_STRING": lambda before, after: after == "",
    "AT_BOUNDARY": lambda before, after: (before == "word") != (after == "word"),
    "AT_NON_BOUNDARY": lambda before, after: (before == "word") == (after == "word"),
}
"""Between which neighbours one stands there. `$` is not among them: it has another meaning in RE2."""
