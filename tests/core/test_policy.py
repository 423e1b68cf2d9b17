"""The ladder of policies: fixed order, trimmed names, typos refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.core.policy import Policy, closest, parse_policies
from onward.errors import UsageError

LADDER = ["retry", "recover-in-place", "recover", "elastic-training", "dump", "exit"]


def test_ladder_goes_from_cheapest_to_dearest() -> None:
    assert [policy.value for policy in Policy] == LADDER


def test_policy_prints_as_the_name_users_write() -> None:
    # Python 3.10 and 3.11 disagree about (str, Enum) unless told.
    assert str(Policy.RECOVER_IN_PLACE) == f"{Policy.RECOVER_IN_PLACE}" == "recover-in-place"
    assert json.dumps([Policy.RETRY]) == '["retry"]'


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("retry,recover-in-place,dump,exit", ["retry", "recover-in-place", "dump", "exit"]),
        ("recover", ["recover", "exit"]),
        ("exit", ["exit"]),
        ("exit,dump,retry", ["retry", "dump", "exit"]),
        ("  dump ,\tretry\n, dump", ["retry", "dump", "exit"]),
        (",".join(reversed(LADDER)), LADDER),
    ],
)
def test_parsed_in_ladder_order(text: str, names: list[str]) -> None:
    assert [policy.value for policy in parse_policies(text)] == names


@pytest.mark.parametrize("text", ["", "  ", " , ,,"])
def test_no_policy_at_all_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(UsageError, match=r"names no policy.*or write exit"):
        parse_policies(text)


@given(st.lists(st.sampled_from(LADDER), min_size=1))
def test_any_order_and_repetition_gives_the_same_ladder(names: list[str]) -> None:
    chosen = parse_policies(" , ".join(names))
    assert chosen == tuple(policy for policy in Policy if policy.value in {*names, "exit"})


def test_all_unknown_names_are_listed_with_what_was_meant() -> None:
    with pytest.raises(UsageError) as caught:
        parse_policies("retyr, dump, recover_in_place, Recover, xyzzy")
    problems = caught.value.problems
    assert len(problems) == 4
    for typo, meant in [("retyr", "retry"), ("recover_in_place", "recover-in-place"), ("Recover", "recover")]:
        assert [p for p in problems if f"'{typo}'" in p and f"did you mean '{meant}'?" in p], problems
    (strange,) = [p for p in problems if "'xyzzy'" in p]
    assert "did you mean" not in strange
    assert all(name in strange for name in LADDER)


@pytest.mark.parametrize(
    ("word", "meant"),
    [("foo", None), ("oon", "oom"), ("kil", "kill"), ("slwo", "slow"), ("sopt", "stop"), ("xy", None)],
)
def test_a_short_word_must_be_near(word: str, meant: str | None) -> None:
    assert closest(word, ["oom", "kill", "slow", "stop", "during-recovery"]) == meant


@given(st.text())
def test_any_text_gives_policies_or_a_usage_error(text: str) -> None:
    try:
        last: object = parse_policies(text)[-1]
    except UsageError as refused:
        last = refused
    assert last is Policy.EXIT or (isinstance(last, UsageError) and last.problems)
