"""What the operator wrote down, read again: by itself, or after somebody else has had a hand in it."""

from __future__ import annotations

from onward.operator.views import read_record, spans


def test_what_others_wrote_breaks_nothing() -> None:
    avoid = {"node-1": "yesterday", "node-2": 5}
    odd = {"wave": "x", "floor": True, "done": {"Worker": "2-1,0-99999999,x"}, "avoid": avoid}
    record = read_record({"record": odd, "startTime": 7})
    assert (record.wave, record.floor, record.avoid, record.started_at) == (0, 0, (), None)
    assert len(record.done[0][1]) < 30_000, "no more than a job can have"
    assert read_record({"record": "nonsense"}) == read_record({})


def test_places_that_are_done() -> None:
    assert spans((0, 1, 2, 7)) == "0-2,7"
    assert read_record({"record": {"done": {"Worker": "0-2,7"}}}).done == (("Worker", (0, 1, 2, 7)),)
