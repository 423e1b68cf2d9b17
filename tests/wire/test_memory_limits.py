"""What a container may still take, as its control groups say: both versions, on files."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from onward.wire import memory

MB = 1 << 20


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory, "ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "OWN", str(tmp_path / "own"))
    (tmp_path / "cgroup").mkdir()
    return tmp_path / "cgroup"


def write(place: Path, **files: object) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / f"memory.{name}").write_text(f"{text}\n")


def belong_to(root: Path, line: str) -> None:
    (root.parent / "own").write_text(f"{line}\n")


def test_a_container_sees_its_own_group_at_the_top(root: Path) -> None:
    belong_to(root, "0::/")
    stat = f"anon {300 * MB}\nshmem {200 * MB}\nfile_mapped {300 * MB}\ninactive_file {200 * MB}\nactive_file {50 * MB}"
    write(root, max=1000 * MB, high="max", current=900 * MB, stat=stat, events="low 0\noom 2\noom_kill 3")
    assert memory.available_bytes() == (100 + 150) * MB, "cached files give way, those that are mapped do not"
    assert memory.limit_bytes() == 1000 * MB
    assert memory.oom_kills() == 3


def test_the_tightest_group_on_the_way_to_the_top_counts(root: Path) -> None:
    belong_to(root, "0::/pods/uid/main")
    write(root / "pods/uid/main", max="max", current=0, stat="")
    write(root / "pods/uid", max=800 * MB, current=750 * MB, stat="")
    write(root / "pods", max=4000 * MB, current=100 * MB, stat="")
    assert memory.available_bytes() == 50 * MB
    assert memory.limit_bytes() == 800 * MB


def test_version_1(root: Path) -> None:
    """Its path is that of the host, and not to be found in the container."""
    belong_to(root, "5:cpu,cpuacct:/kubepods/x\n4:memory:/kubepods/x")
    stat = f"inactive_file 0\ntotal_inactive_file {30 * MB}\ntotal_active_file {20 * MB}\ntotal_mapped_file {10 * MB}"
    kills = "oom_kill_disable 0\nunder_oom 0\noom_kill 1"
    write(root / "memory", limit_in_bytes=300 * MB, usage_in_bytes=290 * MB, stat=stat, oom_control=kills)
    assert memory.available_bytes() == 50 * MB
    assert memory.oom_kills() == 1


@pytest.mark.parametrize("line", ["0::/", "0::/../../elsewhere", "4:memory:/", ""])
def test_without_a_limit_it_is_what_the_machine_has(root: Path, line: str) -> None:
    belong_to(root, line) if line else None
    write(root / "memory", limit_in_bytes=(1 << 63) - 4096, usage_in_bytes=5, stat="")
    write(root, max="max", current="nonsense")
    assert memory.limit_bytes() == psutil.virtual_memory().total
    assert memory.available_bytes() > 0
    assert memory.oom_kills() == 0
