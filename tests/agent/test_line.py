"""Where an agent looks for a manager: first where it was, then at the others, and there again in between."""

from __future__ import annotations

from onward.agent.line import Line, Patience

ALL = ["a", "b", "c"]


def in_office() -> Line:
    line = Line(["a"], Patience())
    line.told(ALL, in_office=True)
    assert line.left(100.0, heard=True, nobody_home=False) == "a"
    return line


def test_the_same_manager_is_looked_for_first() -> None:
    line = in_office()
    assert line.left(101.0, heard=False, nobody_home=False) == "a"
    assert line.left(102.5, heard=False, nobody_home=False) == "b"


def test_of_several_doors_the_first_is_where_a_job_begins_and_the_others_are_tried_when_it_is_gone() -> None:
    line = Line(ALL, Patience())
    assert line.wait_s(60.0, in_office=False) == Patience().silence_s, "its nodes may take their time"
    assert line.left(0.0, heard=False, nobody_home=True) == "b"
    assert line.wait_s(0.5, in_office=False) == Patience().office_s - 0.5
    assert [line.left(2.0 + i, heard=False, nobody_home=True) for i in range(2)] == ["a", "c"]


def test_where_the_host_is_gone_nobody_waits() -> None:
    assert in_office().left(100.1, heard=False, nobody_home=True) == "b"


def test_the_old_door_is_tried_between_the_others() -> None:
    line = in_office()
    doors = [line.left(110.0 + i, heard=False, nobody_home=False) for i in range(5)]
    assert doors == ["b", "a", "c", "a", "b"]


def test_whoever_is_found_in_office_is_the_one_to_come_back_to() -> None:
    line = in_office()
    line.left(110.0, heard=False, nobody_home=True)
    line.told(["b", "c"], in_office=True)
    assert line.left(120.0, heard=True, nobody_home=False) == "b"
    assert line.left(123.0, heard=False, nobody_home=False) == "a", "where it began is in the line too"
    assert line.left(124.0, heard=False, nobody_home=False) == "b"


def test_one_that_is_not_in_office_is_left_in_time_not_to_be_taken_for_lost() -> None:
    patience = Patience()
    line = in_office()
    assert line.wait_s(0.0, in_office=True) == patience.silence_s
    assert line.wait_s(0.5, in_office=False) == patience.office_s - 0.5
    assert line.wait_s(9.0, in_office=False) == 0.0
    assert patience.faithful_s + patience.office_s < 5.0, "a node that is silent for longer is lost"


def test_before_anybody_was_in_office_the_first_door_is_all_there_is() -> None:
    line = Line(["a"], Patience())
    assert [line.left(10.0 * i, heard=False, nobody_home=False) for i in range(3)] == ["a", "a", "a"]
    assert line.wait_s(60.0, in_office=False) == Patience().silence_s


def test_who_joins_a_job_that_has_begun_looks_everywhere() -> None:
    """At the first door there may be a manager that will never be in office; the others may be at the last."""
    line = Line(ALL, Patience(), joins=True)
    assert line.wait_s(0.5, in_office=False) == Patience().office_s - 0.5
    assert [line.left(10.0 * i, heard=False, nobody_home=False) for i in range(4)] == ["a", "b", "a", "c"]


def test_who_is_to_join_a_job_looks_for_its_manager_at_home_too_when_somebody_has_started_one_there() -> None:
    line = Line(["a"], Patience(), joins=True)
    line.hosts("me")
    assert line.left(0.0, heard=False, nobody_home=True) == "me"
    line.hosts("")
    assert [line.left(1.0 + i, heard=False, nobody_home=True) for i in range(3)] == ["a"] * 3


def test_who_begins_a_job_does_not_begin_it_at_home() -> None:
    line = Line(["a"], Patience())
    line.hosts("me")
    assert [line.left(float(i), heard=False, nobody_home=True) for i in range(3)] == ["a"] * 3


def test_who_is_told_that_the_job_is_elsewhere_goes_there_at_once() -> None:
    line = Line(["a"], Patience())
    assert line.wait_s(60.0, in_office=False) == Patience().silence_s, "this is where the job would begin"
    line.sent_on(100.0, ["b", "c"])
    assert line.left(100.0, heard=False, nobody_home=False) == "b"
    assert line.wait_s(0.5, in_office=False) == Patience().office_s - 0.5
