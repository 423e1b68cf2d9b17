"""Which of two pods holds a place, while one gets ready to take over from the other."""

from __future__ import annotations

from typing import Any

from world import a_job

from onward.api import ascendjob
from onward.api.job import Job
from onward.operator.places import Seat, seats

PLACE = ("Worker", 0)


def pod(uid: str, name: str, second: int, *, deleted: bool = False) -> dict[str, Any]:
    gone = {"deletionTimestamp": "2026-01-01T00:01:00Z"} if deleted else {}
    made = f"2026-01-01T00:00:{second:02}Z"
    return {"metadata": {"uid": uid, "name": name, "creationTimestamp": made, **gone}, "status": {"phase": "Running"}}


def seated(*pods: dict[str, Any], placed: tuple[str, ...] = ()) -> dict[str, Seat]:
    read = ascendjob.read(a_job("job"))
    assert isinstance(read, Job)
    return seats(pods, read, placed)


OLD, NEW = pod("old", "job-worker-0", 1), pod("new", "job-worker-0-hot", 9)


def test_who_is_there_alone_holds_the_place_whatever_it_is_called() -> None:
    assert seated(OLD) == {"old": (PLACE, None)}
    assert seated(NEW) == {"new": (PLACE, None)}
    nobody = (pod("x", "job-worker-00", 1), pod("y", "job-worker-7-hot", 1))
    assert seated(*nobody) == {"x": (None, None), "y": (None, None)}


def test_the_manager_says_who_holds_it_and_else_who_was_there_first() -> None:
    assert seated(OLD, NEW) == seated(OLD, NEW, placed=("old",)) == {"old": (PLACE, None), "new": (None, PLACE)}
    assert seated(OLD, NEW, placed=("new",)) == {"old": (None, None), "new": (PLACE, None)}, "the old one is relieved"


def test_one_that_goes_is_not_waited_for_when_nobody_can_be_heard() -> None:
    going = pod("old", "job-worker-0", 1, deleted=True)
    assert seated(going, NEW) == {"old": (None, None), "new": (PLACE, None)}


def test_the_names_take_turns() -> None:
    again = pod("again", "job-worker-0", 20)
    assert seated(NEW, again, placed=("new",)) == {"new": (PLACE, None), "again": (None, PLACE)}
    assert seated(NEW, again, placed=("again",)) == {"new": (None, None), "again": (PLACE, None)}
