"""Which files of control groups are written, in both versions. Memory and cpu belong to one of them on a machine: that
one is tried for real by the tests of pods, the files of the other here. What version 2 does with processes is tried for
real wherever it is mounted, also beside version 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

from onward.local.shim import cgroups


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cgroups, "ROOT", str(tmp_path))
    return tmp_path


def test_version_2(root: Path) -> None:
    (root / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    for place in ("", "cluster", "cluster/node-1", "cluster/node-1/uid"):
        (root / place).mkdir(exist_ok=True)
        (root / place / "cgroup.subtree_control").write_text("")  # the kernel makes it with the group
    cluster = cgroups.find("cluster")
    assert cluster.version == 2
    pod = cluster.child("node-1").child("uid")
    pod.create()
    container = pod.child("main")
    container.create()
    # A controller must be passed on by each group above, one word a write; the last one is what a plain file keeps.
    for place in (root, root / "cluster", root / "cluster/node-1", root / "cluster/node-1/uid"):
        assert (place / "cgroup.subtree_control").read_text() == "+cpu"
    assert not (root / "cluster/node-1/uid/main/cgroup.subtree_control").exists(), "who holds processes passes none on"
    leaf = root / "cluster/node-1/uid/main"
    (leaf / "memory.swap.max").write_text("max")
    (leaf / "memory.oom.group").write_text("0")
    assert container.limit(200 << 20, 500) == ""
    assert (leaf / "memory.max").read_text() == str(200 << 20)
    assert (leaf / "memory.swap.max").read_text() == "0"
    assert (leaf / "memory.oom.group").read_text() == "1"
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


def _unified() -> Path | None:
    """Where version 2 is mounted, if we may make groups there."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in [Path(words[1]) for words in mounts if words[2] == "cgroup2"]:
        if os.geteuid() == 0 and os.access(place, os.W_OK) and (place / "cgroup.controllers").exists():
            return place
    return None


@pytest.mark.skipif(_unified() is None, reason="control groups of version 2 are not mounted here, or not ours to make")
def test_version_2_for_real(monkeypatch: pytest.MonkeyPatch) -> None:
    root = _unified()
    assert root is not None
    controllers = (root / "cgroup.controllers").read_text().split()
    monkeypatch.setattr(cgroups, "ROOT", str(root))
    monkeypatch.setattr(cgroups, "CONTROLLERS", tuple(controllers))  # whichever version 1 has left to it
    before = (root / "cgroup.subtree_control").read_text().split()
    cluster = cgroups.find(f"onward-test-{os.getpid()}")
    try:
        pod = cluster.child("node-1").child("uid")
        container = pod.child("main")
        container.create()
        assert (Path(pod.paths[0]) / "cgroup.subtree_control").read_text().split() == controllers
        # Its children leave its session.
        code = "import os, time\nfor _ in range(5):\n if os.fork() == 0: os.setsid()\ntime.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", code], preexec_fn=container.enter, start_new_session=True)
        until(lambda: len(pod.pids()) == 32, "all of them run")
        assert child.pid in container.pids()
        pod.kill()
        assert pod.pids() == []
        assert child.wait(30) == -9
    finally:
        cluster.kill()
        cluster.remove()
        for controller in set(controllers) - set(before):
            (root / "cgroup.subtree_control").write_text(f"-{controller}")
    assert not Path(cluster.paths[0]).exists()


def test_where_there_are_none_it_is_said(root: Path) -> None:
    assert cgroups.find("cluster").limit(1, 0) == "no control groups here: limits are not enforced"
    assert cgroups.Group().limit(0, 0) == "", "nobody asked for any"
    (root / "cgroup.controllers").write_text("")
    group = cgroups.find("cluster")
    (root / "cluster/memory.max").mkdir()  # a file that cannot be written, also by root
    assert group.limit(1, 0) == f"limits are not enforced: Is a directory ({root}/cluster/memory.max)"
