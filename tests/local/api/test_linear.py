"""Expressions that `re` cannot be asked: the same answers, and soon."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.local.api import linear
from onward.local.api.linear import Expression


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "pattern", [r"^(a+)+\Z", r"^(a|aa)*\Z", "(a?){40}a{40}b", r"^([a-z0-9]+)*\Z", r"^(a|a|a)*(a|a|a)*\Z", r"(\w*\w*)*!"]
)
def test_there_are_more_ways_than_anybody_can_wait_for(pattern: str) -> None:
    assert not Expression(pattern, re.ASCII).search("a" * 50 + "?")
    assert not Expression(pattern, re.ASCII).search("a" * 50_000 + "?")
    last = next((each for each in "b!" if each in pattern), "")
    assert Expression(pattern, re.ASCII).search("a" * 50_000 + last)


ATOM = st.sampled_from(
    [
        "a",
        "b",
        ".",
        "[ab]",
        "[^a]",
        r"\w",
        r"\s",
        r"\b",
        r"\B",
        "^",
        r"\Z",
        "(?i:A)",
        "(?-i:a)",
        "(?s:.)",
        "\\n",
        "(?:)",
    ]
)
PATTERN = st.recursive(
    ATOM,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "+?"])).map(
            lambda both: f"(?:{both[0]}){both[1]}"
        ),
    ),
    max_leaves=8,
)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(
    PATTERN,
    st.text("aAb \n_", min_size=1, max_size=8),
    st.sampled_from([re.ASCII, re.ASCII | re.MULTILINE, re.ASCII | re.IGNORECASE]),
)
def test_the_answers_are_those_of_re(pattern: str, text: str, flags: int) -> None:
    expression = Expression(pattern, flags)
    expression._few = False  # never the short way
    assert expression.search(text) is (re.compile(pattern, flags).search(text) is not None)


def test_how_much_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "REMEMBERED", 5)
    expression = Expression(r"^([a-z]+[0-9]?)*\Z", re.ASCII)
    assert expression.search("abcdefghijklmnop1qrstu")
    assert not expression.search("abcdefghijklmnop1qrstu-")
    assert len(expression._steps) <= 5
    with pytest.raises(re.error, match="too large"):
        Expression("((a{1000}){1000})", re.ASCII)
    with pytest.raises(re.error, match="at_end is not supported"):
        Expression("a$", re.ASCII)
