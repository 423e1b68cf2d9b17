"""One cluster for the tests of nodes and of `onward up`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from onecluster import MOUNTS, OneCluster, left_processes

from onward.local import wiring
from onward.local.plan import cluster_id

NODE_FILE = """
nodes:
- {name: node-1, labels: {disk: ssd}}
- {name: node-2}
- {name: node-3, taints: ["dedicated=gpu:NoSchedule"], resources: {huawei.com/Ascend910: 8}}
"""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneCluster]:
    """Three nodes. Taking it down must leave nothing: that is checked here, after all that the tests did to it."""
    why = wiring.possible()
    if why:
        pytest.skip(f"pods cannot have namespaces of their own here: {why}")
    place = tmp_path_factory.mktemp("cluster")
    (place / "nodes.yaml").write_text(NODE_FILE)
    (place / "share").mkdir()
    (place / "share" / "hello").write_text("from nfs\n")
    state = place / "state"
    flags = ["--node-file", str(place / "nodes.yaml"), "--gpus", "2", "--cpus", "8", "--memory", "16Gi"]
    one = OneCluster(state, *flags, "--nfs", f"nas:/export={place / 'share'}")
    try:
        yield one
    finally:
        name = cluster_id(state)
        one.down()
        assert not state.exists()
        assert not [n for n in os.listdir("/run/netns") if n.startswith(name)], "network namespaces are left"
        assert not Path(f"/sys/class/net/{name}h").exists(), "a link is left"
        groups = [str(p) for p in Path("/sys/fs/cgroup").glob(f"*/{name}")]
        assert not groups, "control groups are left"
        assert not [p for p in Path("/dev/shm").iterdir() if p.name.startswith(name)]
        assert not [
            line for line in Path("/proc/mounts").read_text().splitlines() if name in line or str(state) in line
        ]
        left = left_processes()
        assert not left, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]
        assert not MOUNTS.exists(), "a mount point is left"
