"""Published faults: what is refused, what is counted, what is barred, and how long it lasts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.core.intake import (
    SAME_AS,
    Answer,
    Notice,
    Surroundings,
    carry_out,
    read_frequency,
    read_seconds,
    read_silenced,
)
from onward.core.membership import Member
from onward.core.published import (
    MOST,
    TOGETHER_S,
    Board,
    Level,
    Occurrence,
    Published,
    Rules,
    due,
    expired,
    frequency,
    level_now,
    sub_healthy,
    why_barred,
    why_separated,
)
from onward.errors import UsageError

A = Member(id="aa", host="alpha", address="10.0.0.1")
B = Member(id="bb", host="beta", address="10.0.0.2")
S = Member(id="ss", host="sigma", address="10.0.0.3", standby=True)
NOTHING = Board()
AROUND = Surroundings((A, B), (A, B, S), 4, Rules(), 1000.0)


def ask(board: Board = NOTHING, around: Surroundings = AROUND, uid: str = "", **words: Any) -> Answer:
    return carry_out(board, Notice(**words), uid or f"u{board.version}", around)


def report(board: Board = NOTHING, around: Surroundings = AROUND, **words: Any) -> Board:
    answer = ask(board, around, **({"op": "report", "code": "c", "level": "sub-health", "node": "1"} | words))
    assert not answer.problems
    return answer.board


# ---------------------------------------------------------------------------------------------------- what is said


def test_of_two_names_of_a_level_our_own_is_meant() -> None:
    (problem,) = ask(op="report", level="subhealth", code="x", rank="1").problems
    assert "did you mean 'sub-health'?" in problem


def test_every_problem_is_told_at_once() -> None:
    words = {"level": "restrat", "code": "a b", "text": "x" * 300, "lasts": "soon", "node": "gamma", "rank": "8"}
    answer = ask(op="report", device="9", **words)
    text = "\n".join(answer.problems)
    for part in ("did you mean 'restart'", "code 'a b'", "300 letters", "'soon' is not a time", "rank 8 is not"):
        assert part in text
    assert "no node is called 'gamma'" in text
    assert "device 9 is not one of" in text
    assert answer.board == Board()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({}, "name a node or a rank"),
        ({"device": "1"}, "name the node too"),
        ({"node": "2"}, "not one of the 2 nodes"),
        ({"node": "bta"}, "did you mean 'beta'"),
        ({"node": "0", "rank": "5"}, "rank 5 is not one of node 0"),
        ({"rank": "5", "device": "3"}, "rank 5 uses device 1, not 3"),
        ({"node": "sigma", "device": "1"}, "uses no device"),
        ({"node": "sigma", "level": "retry"}, "has no rank to do that to"),
        ({"node": "1", "level": ""}, "no level given"),
        ({"node": "1", "code": ""}, "no code given"),
        ({"node": "1", "lasts": "0"}, "not a time"),
        ({"node": "1", "lasts": "-5"}, "not a time"),
    ],
)
def test_what_makes_no_sense_is_refused(words: dict[str, str], problem: str) -> None:
    answer = ask(op="report", **({"level": "sub-health", "code": "c"} | words))
    assert [problem in p for p in answer.problems] == [True], answer.problems


def test_a_vacant_place_and_a_name_that_two_share() -> None:
    vacant = replace(AROUND, places=(A, None))
    for words in ({"node": "1"}, {"rank": "4"}):
        assert "still vacant" in ask(around=vacant, op="report", level="retry", code="c", **words).problems[0]
    twins = replace(AROUND, places=(A, replace(B, host="alpha")), here=())
    (problem,) = ask(around=twins, op="report", level="retry", code="c", node="alpha").problems
    assert "several nodes are called alpha: 0 (aa), 1 (bb)" in problem


def test_the_only_node_is_neither_separated_nor_wholly_restarted() -> None:
    alone = replace(AROUND, places=(A,), here=(A,))
    assert "the only node" in ask(around=alone, op="report", level="separate", code="c", node="0").problems[0]
    assert "name a rank" in ask(around=alone, op="report", level="restart", code="c", node="0").problems[0]
    helped = replace(alone, here=(A, S))
    assert not ask(around=helped, op="report", level="separate", code="c", node="0").problems


@pytest.mark.parametrize(
    ("words", "where"),
    [
        ({"node": "beta"}, ("bb", 1, -1, -1)),
        ({"node": "10.0.0.2", "device": "2"}, ("bb", 1, 6, 2)),
        ({"rank": "6"}, ("bb", 1, 6, -1)),
        ({"node": "ss"}, ("ss", -1, -1, -1)),
    ],
)
def test_whom_it_is_about(words: dict[str, str], where: tuple[Any, ...]) -> None:
    (f,) = report(**({"node": ""} | words)).faults
    assert (f.agent, f.node, f.rank, f.device) == where


@pytest.mark.parametrize("name", SAME_AS)
def test_the_reference_s_names_are_understood(name: str) -> None:
    (f,) = report(level=name).faults
    assert f.level is SAME_AS[name]


def test_times_rules_and_silencing_as_people_write_them() -> None:
    problems: list[str] = []
    assert [read_seconds(t, problems) for t in ("60", "1.5s", "5m", "2h", "1d")] == [60, 1.5, 300, 7200, 86400]
    assert not problems
    assert read_silenced("a, b:60,c:1h") == (("a", 0.0), ("b", 60.0), ("c", 3600.0))
    assert read_frequency("3/24h") == (3, 86400.0)
    assert read_frequency("off")[0] == 0
    for wrong in ("3", "x/1h", "3/never", ""):
        with pytest.raises(UsageError):
            read_frequency(wrong)
    with pytest.raises(UsageError) as e:
        read_silenced("a b,c:x")
    assert len(e.value.problems) == 2


@given(st.builds(Notice, *[st.text(max_size=12)] * 9))
def test_any_words_are_answered(notice: Notice) -> None:
    answer = carry_out(report(), notice, "u", AROUND)
    assert answer.problems or answer.said or notice.op == "list"


# ---------------------------------------------------------------------------------------------------- what stands


def test_a_fault_that_lasts_is_brought_up_to_date_and_not_counted_again() -> None:
    board = report(text="first")
    board = report(board, replace(AROUND, at=1100.0), text="second", lasts="60")
    (f,) = board.faults
    assert (f.id, f.text, f.since, f.until) == (1, "second", 1000.0, 1160.0)
    assert len(board.seen) == 1


def test_there_is_a_limit() -> None:
    board = Board()
    for n in range(MOST):
        board = report(board, code=f"c{n}")
    assert "clear some first" in ask(board, op="report", level="retry", code="x", rank="1").problems[0]


def test_a_request_is_carried_out_once() -> None:
    once = ask(op="report", uid="u", level="retry", code="c", rank="1").board
    again = ask(once, op="report", uid="u", level="retry", code="c", rank="1")
    assert (again.board, again.problems) == (once, ())
    gone = ask(once, op="clear", uid="v", everything=True).board
    assert not ask(gone, op="clear", uid="v", everything=True).problems


def test_clearing_by_id_code_node_rank_and_all() -> None:
    board = report(report(report(), code="d", node="0"), code="c", node="", rank="6")

    def left(**words: Any) -> list[int]:
        return [f.id for f in ask(board, op="clear", **words).board.faults]

    assert left(id="2") == [1, 3]
    assert left(code="c") == [2]
    assert left(node="1") == left(node="beta") == [2]
    assert left(rank="6") == [1, 2]
    assert left(code="c", node="0") == [1, 2, 3]
    assert left(everything=True) == []
    assert "which faults?" in ask(board, op="clear").problems[0]
    assert "these stand: 1 (c), 2 (d), 3 (c)" in ask(board, op="clear", id="9").problems[0]


def test_what_is_over() -> None:
    board = report(report(lasts="60"), code="once", level="retry", node="", rank="6")
    assert expired(board, (A, B), 1059.0)[1] == ()
    assert [f.code for f in expired(board, (A, B), 1060.0)[1]] == ["c"]
    assert [f.code for f in expired(board, (A, S), 1001.0)[1]] == ["once"], "its rank is elsewhere now"
    assert [f.code for f in expired(board, (A, B), 5000.0)[1]] == ["c", "once"], "nobody waits for ever"


# ---------------------------------------------------------------------------------------------------- what follows


def test_the_same_code_too_often_isolates_and_is_released() -> None:
    rules = Rules(times=3, window_s=3600.0)
    board = Board()
    for n in range(3):
        around = replace(AROUND, rules=rules, at=1000.0 + 100 * n)
        board = report(board, around, level="retry", node="", rank="6")
        board = replace(board, faults=tuple(replace(f, done=f.level is Level.RETRY) for f in board.faults))
    isolated = board.faults[-1]
    assert (isolated.level, isolated.agent, isolated.rank) == (Level.SEPARATE, "bb", -1)
    assert "c came 3 times within 1 h" in why_separated(board, "bb", rules, 1300.0)
    assert isolated.until == 1200.0 + 7200.0
    assert not board.seen, "it starts from nothing when it comes back"


@pytest.mark.parametrize(
    "change",
    [{"level": "not-handle"}, {"silenced": (("c", 0.0),)}, {"window_s": 50.0}, {"times": 0}, {"alone": True}],
    ids=str,
)
def test_what_is_not_counted(change: dict[str, Any]) -> None:
    rules = Rules(**({"times": 2} | {k: v for k, v in change.items() if k not in ("level", "alone")}))
    around = replace(AROUND, rules=rules)
    if change.get("alone"):
        around = replace(around, places=(A,), here=(A,))
    board = Board()
    for n in range(4):
        level = change.get("level", "retry")
        board = report(board, replace(around, at=1000.0 + 100 * n), level=level, node="", rank="1")
        board = replace(board, faults=tuple(replace(f, done=True) for f in board.faults))
    assert Level.SEPARATE not in [f.level for f in board.faults]


def test_the_same_fault_on_two_nodes_at_once_is_the_job_s_doing() -> None:
    seen = (Occurrence("c", "aa", 0.0), Occurrence("c", "bb", TOGETHER_S), Occurrence("c", "aa", 200.0))
    assert frequency(seen, "c", "aa") == 1
    assert frequency(seen, "c", "bb") == 0


def fault(level: Level, **changes: Any) -> Board:
    return Board((replace(Published(1, level, "c", "bb", "10.0.0.2", since=1000.0), **changes),))


def test_who_is_barred() -> None:
    again = replace(B, id="new")
    for level in Level:
        barred = level in (Level.SEPARATE, Level.PRE_SEPARATE)
        assert bool(why_barred(fault(level), B, Rules(), 1001.0)) is barred
        assert bool(why_barred(fault(level), again, Rules(), 1001.0)) is barred, "the same machine, another agent"
        assert not why_barred(fault(level), A, Rules(), 1001.0)
        assert bool(why_separated(fault(level), "bb", Rules(), 1001.0)) is (level is Level.SEPARATE)
    local = replace(B, address="127.0.0.1")
    here = fault(Level.SEPARATE, address="127.0.0.1")
    assert not why_barred(here, replace(local, id="other"), Rules(), 1001.0), "there all have the same address"


def test_a_silenced_fault_is_shown_only_for_as_long_as_it_is() -> None:
    board = fault(Level.RETRY)
    rules = Rules(silenced=(("c", 60.0),))
    assert level_now(board.faults[0], rules, 1059.0) is Level.NOT_HANDLE
    assert not due(board, (A, B), rules, 1059.0)
    assert due(board, (A, B), rules, 1060.0)
    assert not due(fault(Level.RETRY, done=True), (A, B), rules, 1060.0)
    for_ever = Rules(silenced=(("c", 0.0),))
    assert not sub_healthy(fault(Level.SUB_HEALTH), (A, B), for_ever, 1e9)
    assert list(sub_healthy(fault(Level.SUB_HEALTH), (A, B), Rules(), 1e9)) == [1]
