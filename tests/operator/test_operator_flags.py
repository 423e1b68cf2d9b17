"""The command line of `onward operator`."""

from __future__ import annotations

import pytest

from onward.cli.cluster import operator
from onward.operator.process import GANG


@pytest.mark.parametrize(
    ("words", "gang"),
    [
        ([], None),
        (["--gang", "off"], False),
        (["--enableGangScheduling=true"], True),
        (["--enableGangScheduling=false"], False),
        (["--enableGangScheduling"], True),
    ],
)
def test_gangs_in_our_words_and_in_those_of_mindcluster(words: list[str], gang: bool | None) -> None:
    assert GANG[operator.make_context("operator", words).params["gang"]] is gang
