"""Copies in memory: whole, or they say that they hold nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.checkpoints import memory


def buffer(directory: Path, number: int, step: int, data: bytes) -> None:
    page = memory.HEADER.pack(step, len(data)).ljust(memory.PAGE, b"\0")
    memory.buffer_path(directory, number).write_bytes(page + data)


def test_a_step_is_there_when_both_parts_are(tmp_path: Path) -> None:
    buffer(tmp_path, 0, 10, b"x")
    buffer(tmp_path, 1, 20, b"y")
    memory.keep_local(tmp_path, 3, 20, 19, b"slot")
    memory.keep_local(tmp_path, 3, 30, 30, b"slot")
    assert set(memory.buffers(tmp_path)) == {10, 20}
    assert memory.steps_of(tmp_path, 3) == (20,)
    assert memory.local_steps(tmp_path, 3) == (20, 30)
    assert memory.local_steps(tmp_path, 0) == ()
    assert memory.split_local(memory.local_path(tmp_path, 3, 20).read_bytes()) == (20, 19, b"slot")


@pytest.mark.parametrize("step", [-1, 10])
def test_a_buffer_that_is_being_filled_holds_nothing(tmp_path: Path, step: int) -> None:
    buffer(tmp_path, 0, -1, b"half")
    memory.buffer_path(tmp_path, 1).write_bytes(memory.HEADER.pack(step, 1 << 40))  # shorter than it says
    assert memory.buffers(tmp_path) == {}


def test_local_state_without_a_buffer_is_forgotten(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        memory.keep_local(tmp_path, 0, step, step, b"slot")
    memory.forget_locals(tmp_path, {20})
    assert memory.local_steps(tmp_path, 0) == (20,)


@pytest.mark.parametrize("data", [b"", b"short", b"x" * 200])
def test_something_else_is_not_taken_for_local_state(data: bytes) -> None:
    with pytest.raises(ValueError, match="it "):
        memory.split_local(data)
