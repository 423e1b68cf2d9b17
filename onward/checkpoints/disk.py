"""A checkpoint on disk: a directory `step-00000100` with a manifest that names every file and its checksum.

It is written under a temporary name and renamed when it is complete and on the disk, so a directory of that name is
whole. What happens to it afterwards (a bit that flips, a file that is lost) the checksums tell.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from onward.core.checkpoints import SavedFile
from onward.errors import StateError

FORMAT = "onward-checkpoint-1"
MANIFEST = "manifest.json"
SHARED = "shared.safetensors"
_NAME = re.compile(r"step-(\d{8,18})\Z")
_UNFINISHED = re.compile(r"\.step-\d+\..*\.(?:tmp|old)\Z")
_CHUNK = 4 << 20
_LARGEST_MANIFEST = 64 << 20


class Invalid(StateError):
    """A checkpoint that must not be loaded. The message names the file."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`manifest.json`. Its own checksum stands beside it in the file, as `sha256`."""

    format: str
    job: str
    run: str  # which run of the job wrote it
    step: int  # committed steps
    world_size: int
    torch: str
    reason: str  # periodic, dump or stop
    created: str
    files: list[SavedFile]

    def names(self) -> set[str]:
        return {f.name for f in self.files}


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def unfinished_name(step: int, run: str, generation: int) -> str:
    return f".{folder_name(step)}.{run}.{generation}.tmp"


def local_name(rank: int) -> str:
    return f"local-{rank:05d}.bin"


def step_of(name: str) -> int | None:
    found = _NAME.match(name)
    return int(found[1]) if found else None


def folders(directory: Path) -> list[Path]:
    """The checkpoints in `directory`, newest first, valid or not."""
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    steps = {step: name for name in sorted(names) if (step := step_of(name)) is not None}
    return [directory / steps[step] for step in sorted(steps, reverse=True)]


def unfinished(directory: Path) -> list[Path]:
    """What savers that were killed have left behind."""
    try:
        return [directory / name for name in os.listdir(directory) if _UNFINISHED.match(name)]
    except OSError:
        return []


# ------------------------------------------------------------------------------------------- reading


def read_manifest(folder: Path) -> Manifest:
    """The manifest, if it is whole and all files it names are there in full size."""
    path = folder / MANIFEST
    try:
        if path.stat().st_size > _LARGEST_MANIFEST:
            raise Invalid(f"{path} is no manifest: it is too large")
        data = json.loads(path.read_bytes())
        told = data.pop("sha256", "")
        manifest = msgspec.convert(data, Manifest)
    except OSError as e:
        raise Invalid(f"{path} cannot be read ({e.strerror or e})") from e
    except (ValueError, AttributeError, TypeError, msgspec.MsgspecError) as e:
        raise Invalid(f"{path} is damaged ({e})") from e
    if manifest.format != FORMAT:
        raise Invalid(f"{path} is of format {manifest.format!r}; this version reads {FORMAT}")
    if told != _sum(data):
        raise Invalid(f"{path} is damaged (its checksum differs)")
    if step_of(folder.name) not in (None, manifest.step):
        raise Invalid(f"{path} is of step {manifest.step}, which its directory does not say")
    for file in manifest.files:
        _look(folder / file.name, file)
    return manifest


def _look(path: Path, file: SavedFile) -> None:
    try:
        size = path.stat().st_size
    except OSError as e:
        raise Invalid(f"{path} is missing ({e.strerror or e})") from e
    if size != file.size_bytes:
        raise Invalid(f"{path} has {size} bytes, not {file.size_bytes}: it is truncated or was changed")


def verify(folder: Path, manifest: Manifest, names: Iterable[str] | None = None) -> None:
    """Read the files (those in `names`, or all) and compare their checksums."""
    wanted = None if names is None else set(names)
    for file in manifest.files:
        if wanted is None or file.name in wanted:
            path = folder / file.name
            try:
                found = sha256_of(path)
            except OSError as e:
                raise Invalid(f"{path} cannot be read ({e.strerror or e})") from e
            if found != file.sha256:
                raise Invalid(f"{path} is damaged (its checksum differs)")


def sha256_of(path: Path) -> str:
    total = hashlib.sha256()
    with open(path, "rb", buffering=0) as f:
        while chunk := f.read(_CHUNK):
            total.update(chunk)
    return total.hexdigest()


def _sum(data: object) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# ------------------------------------------------------------------------------------------- publishing


def publish(directory: Path, unfinished_folder: Path, manifest: Manifest, keep: int) -> list[str]:
    """Make `unfinished_folder` the checkpoint of its step. Returns the names of older ones that were let go.

    The files are there and on the disk already: their writers have seen to that. A checkpoint of the same step from an
    earlier run gives way; should we be killed between the two renames, neither is loaded, and the next older one is.
    """
    for file in manifest.files:
        _look(unfinished_folder / file.name, file)
    body = msgspec.to_builtins(manifest)
    data = json.dumps({**body, "sha256": _sum(body)}, indent=1).encode() + b"\n"
    with open(unfinished_folder / MANIFEST, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    sync(unfinished_folder)
    target = directory / folder_name(manifest.step)
    if target.exists():
        aside = directory / f".{target.name}.{manifest.run}.old"
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(target, aside)
        os.rename(unfinished_folder, target)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        os.rename(unfinished_folder, target)
    sync(directory)
    return _let_go(directory, manifest.step, keep)


def _let_go(directory: Path, newest: int, keep: int) -> list[str]:
    """Remove all but the `keep` newest up to this one. What lies beyond it is another run's, and not ours to judge."""
    ours = [f for f in folders(directory) if (step_of(f.name) or 0) <= newest]
    gone = []
    for folder in ours[keep:]:
        aside = folder.with_name(f".{folder.name}.gone.old")  # first out of sight, so that none is ever half there
        try:
            os.rename(folder, aside)
        except OSError:
            continue
        shutil.rmtree(aside, ignore_errors=True)
        gone.append(folder.name)
    return gone


def sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
