"""A checkpoint directory is whole, or it is not there; and what happens to it later shows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from onward.checkpoints import disk
from onward.core.checkpoints import SavedFile


def manifest(step: int, *files: SavedFile, run: str = "one") -> disk.Manifest:
    return disk.Manifest(
        format=disk.FORMAT,
        job="job",
        run=run,
        step=step,
        world_size=1,
        torch="2",
        reason="periodic",
        created="now",
        files=list(files),
    )


def write(directory: Path, step: int, data: bytes = b"state", run: str = "one", keep: int = 3) -> Path:
    folder = directory / disk.unfinished_name(step, run, 1)
    folder.mkdir(parents=True)
    (folder / disk.SHARED).write_bytes(data)
    file = SavedFile(disk.SHARED, len(data), disk.sha256_of(folder / disk.SHARED))
    disk.publish(directory, folder, manifest(step, file, run=run), keep)
    return directory / disk.folder_name(step)


def test_what_is_published_is_found_and_valid(tmp_path: Path) -> None:
    folder = write(tmp_path, 100)
    assert folder.name == "step-00000100"
    assert disk.folders(tmp_path) == [folder]
    disk.verify(folder, disk.read_manifest(folder))
    assert not disk.unfinished(tmp_path)


def test_newest_first_and_others_names_are_not_ours(tmp_path: Path) -> None:
    for step in (5, 123456789, 40):
        write(tmp_path, step)
    for name in ("step-1", "step-00000007x", "other", ".step-00000009.one.1.tmp"):
        (tmp_path / name).mkdir()
    assert [f.name for f in disk.folders(tmp_path)] == ["step-123456789", "step-00000040", "step-00000005"]
    assert [f.name for f in disk.unfinished(tmp_path)] == [".step-00000009.one.1.tmp"]
    assert disk.folders(tmp_path / "nowhere") == []


def test_only_the_newest_are_kept_and_later_ones_of_others_are_let_alone(tmp_path: Path) -> None:
    write(tmp_path, 900)
    for step in (10, 20, 30):
        write(tmp_path, step, keep=2)
    assert [disk.step_of(f.name) for f in disk.folders(tmp_path)] == [900, 30, 20]


def test_one_of_the_same_step_gives_way(tmp_path: Path) -> None:
    write(tmp_path, 10, b"old", run="one")
    folder = write(tmp_path, 10, b"new", run="two")
    assert disk.read_manifest(folder).run == "two"
    assert (folder / disk.SHARED).read_bytes() == b"new"
    assert not disk.unfinished(tmp_path)


def test_nothing_is_published_with_a_file_missing(tmp_path: Path) -> None:
    folder = tmp_path / disk.unfinished_name(10, "one", 1)
    folder.mkdir()
    with pytest.raises(disk.Invalid, match="is missing"):
        disk.publish(tmp_path, folder, manifest(10, SavedFile("gone", 1, "x")), 3)
    assert disk.folders(tmp_path) == []


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def _change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


DAMAGE = {
    "no manifest": (disk.MANIFEST, lambda p: p.unlink()),
    "manifest truncated": (disk.MANIFEST, lambda p: p.write_bytes(p.read_bytes()[:40])),
    "manifest is another thing": (disk.MANIFEST, lambda p: p.write_text("[1, 2]")),
    "manifest changed": (disk.MANIFEST, lambda p: _change(p, world_size=7)),
    "manifest of another format": (disk.MANIFEST, lambda p: _change(p, format="onward-checkpoint-9")),
    "file missing": (disk.SHARED, lambda p: p.unlink()),
    "file truncated": (disk.SHARED, lambda p: p.write_bytes(p.read_bytes()[:-1])),
    "bit flipped": (disk.SHARED, _flip),
    "file is a directory": (disk.SHARED, lambda p: (p.unlink(), os.mkdir(p))),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_seen_and_the_file_is_named(tmp_path: Path, kind: str) -> None:
    folder = write(tmp_path, 10)
    name, damage = DAMAGE[kind]
    damage(folder / name)
    with pytest.raises(disk.Invalid) as caught:
        disk.verify(folder, disk.read_manifest(folder))
    assert str(folder / name) in str(caught.value)


def test_a_directory_that_was_renamed_is_not_believed(tmp_path: Path) -> None:
    folder = write(tmp_path, 10)
    os.rename(folder, tmp_path / disk.folder_name(99))
    with pytest.raises(disk.Invalid, match="of step 10"):
        disk.read_manifest(tmp_path / disk.folder_name(99))
