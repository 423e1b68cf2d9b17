"""The journal: every whole record comes back, whatever happened to its end, its bits or its disk."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.manager.journal import Journal, read

RECORDS = [b"first", b"x" * 40, b"\0\0\0\0\0\0\0\0", b"last"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def written(path: Path, records: list[bytes]) -> list[int]:
    """Write them; the answer is where each ends."""
    journal = Journal(path)
    ends = []
    for record in records:
        assert journal.append(record)
        ends.append(path.stat().st_size)
    journal.close()
    return ends


def test_what_was_appended_is_read(path: Path) -> None:
    written(path, RECORDS)
    assert read(path) == RECORDS
    assert Journal(path).last == b"last"
    assert path.stat().st_mode & 0o077 == 0


def test_a_new_journal_is_empty(path: Path) -> None:
    assert read(path) == []
    assert Journal(path).last == b""


def test_a_tail_torn_at_any_byte_is_cut_off_and_built_upon(path: Path) -> None:
    ends = written(path, RECORDS)
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        kept = RECORDS[: sum(end <= cut for end in ends)]
        journal = Journal(path)
        assert journal.last == (kept[-1] if kept else b"")
        journal.append(b"after the crash")
        journal.close()
        assert read(path) == [*kept, b"after the crash"]


def test_any_flipped_bit_is_noticed(path: Path) -> None:
    ends = written(path, RECORDS)
    whole = path.read_bytes()
    for at in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            before = RECORDS[: sum(end <= at for end in ends)]
            assert read(path) == before, f"bit {bit} of byte {at}"


def test_records_behind_a_damaged_one_do_not_come_back(path: Path) -> None:
    """The history goes on from before the damage; what stood after it is another history."""
    ends = written(path, RECORDS)
    damaged = bytearray(path.read_bytes())
    damaged[ends[0] + 10] ^= 1
    path.write_bytes(damaged)
    journal = Journal(path)
    journal.append(b"y" * len(RECORDS[1]))  # as long as the damaged one, so the next would follow on seamlessly
    journal.close()
    assert read(path) == [RECORDS[0], b"y" * len(RECORDS[1])]


@given(st.binary(max_size=200))
def test_garbage_after_the_last_record_does_no_harm(tmp_path_factory: pytest.TempPathFactory, garbage: bytes) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal"
    written(path, RECORDS)
    with path.open("ab") as f:
        f.write(garbage)
    assert read(path)[: len(RECORDS)] == RECORDS
    assert all(len(r) <= len(garbage) for r in read(path)[len(RECORDS) :])


def test_zeros_that_a_file_system_left_behind_are_no_records(path: Path) -> None:
    """After a power cut a file may have its new length and none of its new bytes."""
    written(path, RECORDS)
    with path.open("ab") as f:
        f.write(b"\0" * 4096)
    assert Journal(path).last == b"last"


def test_a_full_disk_loses_the_record_and_nothing_else(path: Path) -> None:
    written(path, RECORDS)
    journal = Journal(path)
    was = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, was[1]))
        assert not journal.append(b"y" * 100), "a part of it would fit"
        assert read(path) == RECORDS
        assert path.stat().st_size == sum(8 + len(r) for r in RECORDS), "and is not left there"
        resource.setrlimit(resource.RLIMIT_FSIZE, was)
        assert journal.append(b"there is room again")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, was)
        signal.signal(signal.SIGXFSZ, handler)
    assert read(path) == [*RECORDS, b"there is room again"]
