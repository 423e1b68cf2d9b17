"""Which files of control groups are written, in both versions. The kernel of this machine has one of them: that one is
tried for real by the tests of pods; this is about the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.local.shim import cgroups


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cgroups, "ROOT", str(tmp_path))
    return tmp_path


def test_version_2(root: Path) -> None:
    (root / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (root / "cgroup.subtree_control").write_text("")
    cluster = cgroups.find("cluster")
    assert cluster.version == 2
    pod = cluster.child("node-1").child("uid")
    pod.create()
    container = pod.child("main")
    container.create()
    # A controller must be passed on by each group above, one word a write; the last one is what a plain file keeps.
    for place in (root, root / "cluster/node-1", root / "cluster/node-1/uid"):
        assert (place / "cgroup.subtree_control").read_text() == "+cpu"
    assert not (root / "cluster/node-1/uid/main/cgroup.subtree_control").exists(), "who holds processes passes none on"
    leaf = root / "cluster/node-1/uid/main"
    (leaf / "memory.swap.max").write_text("max")
    assert container.limit(200 << 20, 500) == ""
    assert (leaf / "memory.max").read_text() == str(200 << 20)
    assert (leaf / "memory.swap.max").read_text() == "0"
    assert (leaf / "cpu.max").read_text() == "50000 100000"
    container.enter(4711)
    assert (leaf / "cgroup.procs").read_text() == "4711"
    assert pod.pids() == [4711]
    assert container.oom_kills() == 0
    (leaf / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 0\n")
    assert container.oom_kills() == 3


def test_version_1(root: Path) -> None:
    for controller in cgroups.CONTROLLERS:
        (root / controller).mkdir()
    container = cgroups.find("cluster").child("node-1").child("main")
    assert container.version == 1
    container.create()
    leaf = root / "memory/cluster/node-1/main"
    (root / "cpu/cluster/node-1/main/cpu.cfs_quota_us").write_text("-1")
    assert container.limit(1 << 20, 1500) == ""
    assert (leaf / "memory.limit_in_bytes").read_text() == str(1 << 20)
    assert (root / "cpu/cluster/node-1/main/cpu.cfs_quota_us").read_text() == "150000"
    container.enter(5)
    assert {f.read_text() for f in root.glob("*/cluster/node-1/main/cgroup.procs")} == {"5"}
    (leaf / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert container.oom_kills() == 1


def test_where_there_are_none_it_is_said(root: Path) -> None:
    assert cgroups.find("cluster").limit(1, 0) == "no control groups here: limits are not enforced"
    assert cgroups.Group().limit(0, 0) == "", "nobody asked for any"
    (root / "cgroup.controllers").write_text("")
    group = cgroups.find("cluster")
    (root / "cluster/memory.max").mkdir()  # a file that cannot be written, also by root
    assert group.limit(1, 0) == f"limits are not enforced: Is a directory ({root}/cluster/memory.max)"
