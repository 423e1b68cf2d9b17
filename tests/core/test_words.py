"""Times and numbers as people write and read them."""

from __future__ import annotations

import pytest

from onward.core.words import counted, ranks_named, read_time, shortened


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60", 60), ("0", 0), ("1.5s", 1.5), (" 5m ", 300), ("5min", 300), ("2h", 7200), ("1d", 86400), ("1h30m", 5400)],
)
def test_a_time_is_a_number_of_seconds_or_has_units(text: str, seconds: float) -> None:
    assert read_time(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "nan", "inf", "-5s", "5x", "h", "1h 30m", "1e3", "10000000000"])
def test_what_is_no_time_is_not_guessed(text: str) -> None:
    assert read_time(text) is None


def test_one_is_not_several() -> None:
    assert (counted(1, "step"), counted(2, "step"), counted(0, "step")) == ("1 step", "2 steps", "0 steps")
    assert (ranks_named([3]), ranks_named({2, 0})) == ("rank 3", "ranks 0, 2")


def test_what_is_too_long_ends_after_a_word_and_says_so() -> None:
    assert shortened("1 of 2 can be placed", 20) == "1 of 2 can be placed"
    assert shortened("1 of 2 can be placed.", 20) == "1 of 2 can be ..."
    assert shortened("x" * 21, 20) == "x" * 16 + " ..."
