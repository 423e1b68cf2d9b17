"""The shared secret of a job, from a file: trimmed, long enough, or a sentence that says what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.errors import UsageError
from onward.wire.token import read_token


def test_white_space_around_it_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"  0123456789abcdef0123\n")
    assert read_token(path) == b"0123456789abcdef0123"


@pytest.mark.parametrize("content", [b"", b"short", b"\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n"])
def test_a_short_one_is_no_secret(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="too short"):
        read_token(path)


def test_one_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere: No such file"):
        read_token(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=str(tmp_path)):
        read_token(tmp_path)
