"""The status page: what a rank wrote last can be read while it is stopped and after it is dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onward.wire.page import SIZE, Page, create

WRITER = """
import os, sys, time
from onward.wire.page import Page
page = Page(sys.argv[1])
page.set("step", 41)
page.set("launched", 7)
page.set_float("loss_bits", 0.125)
page.touch("progress_ns")
print("written", flush=True)
page.set("step", 42)
os.kill(os.getpid(), 9)
"""

FLIPPER = """
import sys
from onward.wire.page import Page
page = Page(sys.argv[1])
print("go", flush=True)
while True:
    page.set("step", 0x1111111111111111)
    page.set("step", 0x2222222222222222)
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    create(str(tmp_path / "page"))
    return str(tmp_path / "page")


def test_an_empty_page_says_that_nothing_is_known(path: str) -> None:
    page = Page(path)
    assert page.get("step") == -1
    assert page.get("launched") == 0
    assert page.age_s("beat_ns", time.monotonic_ns()) == 0.0
    assert os.stat(path).st_size == SIZE
    assert os.stat(path).st_mode & 0o077 == 0, "for our eyes only"


def test_two_see_the_same_page(path: str) -> None:
    writer, reader = Page(path), Page(path)
    for value in (0, 1, -1, 2**63 - 1, -(2**63)):
        writer.set("launched", value)
        assert reader.get("launched") == value
    writer.set_float("loss_bits", -2.5)
    assert reader.get_float("loss_bits") == -2.5
    assert reader.get("step") == -1, "its neighbours are untouched"


def test_ages_are_never_negative(path: str) -> None:
    page = Page(path)
    page.touch("beat_ns")
    then = page.get("beat_ns")
    assert page.age_s("beat_ns", then + 2_000_000_000) == 2.0
    assert page.age_s("beat_ns", then - 5) == 0.0


def test_a_number_that_does_not_fit_is_refused_and_changes_nothing(path: str) -> None:
    page = Page(path)
    page.set("step", 3)
    with pytest.raises(ValueError, match=r"range|format"):
        page.set("step", 2**63)
    assert page.get("step") == 3


def test_the_reader_sees_what_a_dead_writer_wrote_last(path: str) -> None:
    reader = Page(path)
    p = subprocess.run([sys.executable, "-c", WRITER, path], capture_output=True, text=True, timeout=120, check=False)
    assert p.returncode == -signal.SIGKILL, p.stderr
    assert reader.get("step") == 42
    assert reader.get("launched") == 7
    assert reader.get_float("loss_bits") == 0.125
    assert 0.0 < reader.age_s("progress_ns", time.monotonic_ns()) < 120.0, "one clock for all processes"


def test_no_number_is_ever_seen_half_written(path: str) -> None:
    """One word, all or nothing: a step that reads as 0 for a moment would count as all steps lost."""
    values = {0x1111111111111111, 0x2222222222222222}
    reader = Page(path)
    reader.set("step", min(values))
    p = subprocess.Popen([sys.executable, "-c", FLIPPER, path], stdout=subprocess.PIPE)
    try:
        assert p.stdout is not None
        assert p.stdout.readline() == b"go\n"
        seen = {reader.get("step") for _ in range(300_000)}
    finally:
        p.kill()
        p.wait()
    assert seen <= values
    assert len(seen) == 2, "the writer must have been at work"


def test_a_page_can_be_closed(path: str) -> None:
    page = Page(path)
    page.close()
    with pytest.raises(ValueError, match="released"):
        page.get("step")


def test_a_page_is_made_anew_and_not_inherited(path: str) -> None:
    Page(path).set("step", 5)
    create(path)
    assert Page(path).get("step") == -1


def test_a_page_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        Page(str(tmp_path / "nothing"))
