"""The little language of label selectors, read token by token so that complaints name what was found."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from onward.local.api.names import key_problem, value_problem
from onward.local.api.status import bad_request, shown

Test = Callable[[Mapping[str, str]], bool]
_TOKEN = re.compile(r"\s*(==|!=|[(),!=<>]|[^\s(),!=<>]+)")
_MARKS = ("(", ")", ",", "!", "=", "==", "!=", "<", ">")
_OPERATORS = ("in", "notin", "=", "==", "!=", "<", ">")


class _Problem(Exception):
    """What is wrong with one requirement."""


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens = _TOKEN.findall(text)
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1] if self.at <= len(self.tokens) else ""

    def all(self) -> list[Test]:
        tests: list[Test] = []
        while self.peek():
            if self.peek() in _MARKS and self.peek() != "!":
                raise bad_request(f"found '{self.peek()}', expected: !, identifier, or 'end of string'")
            try:
                tests.append(self.requirement())
            except _Problem as problem:
                raise bad_request(f"unable to parse requirement: {problem}") from None
            mark = self.take()
            if mark and mark != ",":
                raise bad_request(f"found '{mark}', expected: ',' or 'end of string'")
            if mark and (not self.peek() or (self.peek() in _MARKS and self.peek() != "!")):
                raise bad_request(f"found '{self.peek()}', expected: identifier after ','")
        return tests

    def requirement(self) -> Test:
        absent = self.peek() == "!" and bool(self.take())
        key = self.take()
        if not key or key in _MARKS:
            raise _Problem(f"found '{key}', expected: identifier")
        bad = key_problem(key)
        if bad:
            raise _Problem(f"<nil>: Invalid value: {shown(key)}: {bad}")
        if absent:
            return lambda labels: key not in labels
        if self.peek() in ("", ","):
            return lambda labels: key in labels
        operator = self.take()
        if operator not in _OPERATORS:
            raise _Problem(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")
        values = self.several() if operator in ("in", "notin") else [self.one()]
        return _test(key, operator, values)

    def one(self) -> str:
        if self.peek() in ("", ","):
            return ""
        value = self.take()
        if value in _MARKS:
            raise _Problem(f"found '{value}', expected: identifier")
        return value

    def several(self) -> list[str]:
        mark = self.take()
        if mark != "(":
            raise _Problem(f"found '{mark}' expected: '('")
        values: list[str] = []
        while True:
            if self.peek() in (",", ")"):
                values.append("")
            elif self.peek() and self.peek() not in _MARKS:
                values.append(self.take())
            mark = self.take()
            if mark == ")":
                return values
            if mark != ",":
                raise _Problem(f"found '{mark}', expected: ',' or ')'")


def _test(key: str, operator: str, values: list[str]) -> Test:
    if operator in ("<", ">"):
        if not re.fullmatch(r"[+-]?\d+", values[0]):
            why = "for 'Gt', 'Lt' operators, the value must be an integer"
            raise _Problem(f"values[0]: Invalid value: {shown(values[0])}: {why}")
        return lambda labels: _ordered(labels.get(key, ""), int(values[0]), operator)
    for index, value in enumerate(values):
        bad = value_problem(value)
        if bad:
            raise _Problem(f"values[{index}][{key}]: Invalid value: {shown(value)}: {bad}")
    wanted = set(values)
    if operator in ("notin", "!="):
        return lambda labels: labels.get(key) not in wanted
    return lambda labels: labels.get(key) in wanted


def _ordered(found: str, bound: int, operator: str) -> bool:
    if not re.fullmatch(r"[+-]?\d+", found):
        return False
    return int(found) < bound if operator == "<" else int(found) > bound


def parse(text: str) -> Test:
    """A predicate on a label map. Raises ApiError for what the real server refuses."""
    tests = _Parser(text).all()
    return lambda labels: all(test(labels) for test in tests)
