"""`onward checkpoints`: what it says about files that it has read, and about those it has not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onward.checkpoints import disk
from onward.cli.main import main
from onward.core.checkpoints import SavedFile


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A checkpoint whose bytes were changed since, with nothing else to show for it."""
    folder = tmp_path / disk.unfinished_name(7, "run", 1)
    folder.mkdir()
    (folder / disk.SHARED).write_bytes(b"state")
    file = SavedFile(disk.SHARED, 5, disk.sha256_of(folder / disk.SHARED))
    manifest = disk.Manifest(
        format=disk.FORMAT,
        job="job",
        run="run",
        step=7,
        world_size=1,
        torch="2",
        reason="periodic",
        created="now",
        files=[file],
    )
    disk.publish(tmp_path, folder, manifest, 3)
    (tmp_path / disk.folder_name(7) / disk.SHARED).write_bytes(b"stale")
    return tmp_path


def test_what_was_read_is_judged(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", str(directory)]) == 1
    assert "no: " in capsys.readouterr().out.splitlines()[1]


def test_what_was_not_read_is_not_called_valid(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", "--quick", str(directory)]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("not read")
    assert main(["checkpoints", "--quick", "-o", "json", str(directory)]) == 0
    assert json.loads(capsys.readouterr().out)[0]["valid"] is None
