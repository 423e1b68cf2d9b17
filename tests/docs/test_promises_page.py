"""Each promise has a test of its name, and each test that is named is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "promises.md").read_text()
ROWS = re.findall(r"^\| ([A-Z][^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)
FILES = (ROOT / "tests").rglob("test_*.py")
TESTS = {name for path in FILES for name in re.findall(r"def (test_\w+)", path.read_text())}


@pytest.mark.parametrize(("promise", "shown"), ROWS)
def test_what_is_said_to_show_it_is_there(promise: str, shown: str) -> None:
    words = re.findall(r"`([^`]+)`", shown)
    assert words, promise
    for word in words:
        if word.startswith("tests/"):
            assert (ROOT / word).exists(), word
        elif word.startswith("test_") and not word.endswith(".py"):
            start = word.removesuffix("...")
            assert any(name == word or (start != word and name.startswith(start)) for name in TESTS), word


def test_all_promises_are_on_the_page() -> None:
    assert len(ROWS) >= 10
