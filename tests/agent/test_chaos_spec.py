"""Faults on purpose, as people write them: what makes no sense is refused, all of it at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.agent.chaos import parse_chaos
from onward.errors import UsageError


def problems(*specs: str) -> str:
    with pytest.raises(UsageError) as refused:
        parse_chaos(specs, 2)
    return str(refused.value)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("kind=slow,rank=1,delay=-2", "delay='-2' is not a number of seconds"),
        ("kind=slow,rank=1,delay=nan", "delay='nan' is not a number of seconds"),
        ("kind=stop,rank=1,seconds=soon", "seconds='soon' is not a number of seconds"),
        ("kind=kill,rank=1,step=-3", "step='-3' is not a whole number from 0 on"),
        ("kind=kill,rank=1,step=x", "step='x' is not a whole number from 0 on"),
        ("", "--chaos is empty"),
        ("kind=kill", "which rank? add rank=N, or several joined with +"),
        ("kind=kill,rank=one", "rank='one' is no rank; give its number"),
        ("rank=1", "no kind is given (the kinds are kill, "),
        ("kind=kil,rank=1", "unknown kind 'kil'; did you mean 'kill'? (the kinds are kill, "),
    ],
)
def test_numbers_that_mean_nothing_are_refused(spec: str, told: str) -> None:
    assert told in problems(spec)


def test_every_problem_is_listed() -> None:
    told = problems("kind=kil,rank=9,step=-3", "kind=slow,rank=0,delay=-1")
    assert all(word in told for word in ("did you mean 'kill'", "rank 9 is not", "step='-3'", "delay='-1'"))


def test_what_is_left_out_has_its_default() -> None:
    (found,) = parse_chaos(["kind=kill,rank=1"], 2)
    assert (found.step, found.seconds, found.at) == (-1, 0.0, "begin")


def test_a_file_says_the_same_as_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "storm.yaml"
    path.write_text("- {kind: double, rank: 0+1, step: 5}\n- {kind: during-recovery, rank: 1}\n")
    assert parse_chaos([str(path)], 2) == parse_chaos(["kind=double,rank=0+1,step=5", "kind=during-recovery,rank=1"], 2)
    assert [(i.kind, i.rank, i.at) for i in parse_chaos([str(path)], 2)] == [
        ("kill", 0, "begin"),
        ("kill", 1, "begin"),
        ("kill", 1, "recovery"),
    ]


@pytest.mark.parametrize("text", ["kind: kill", "- kill", "{", "- {kind: kil, rank: 0}"])
def test_a_file_that_makes_no_sense_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "storm.yaml"
    path.write_text(text)
    assert str(path) in problems(str(path))
