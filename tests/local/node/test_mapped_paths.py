"""What nfs and hostPath volumes are on this machine, as the file of nodes says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onward.errors import UsageError
from onward.local import plan
from onward.local.node import volumes


def prepared(tmp_path: Path, host_paths: dict[str, str], *entries: dict[str, Any]) -> dict[str, str]:
    pod = {"metadata": {"uid": "u"}, "spec": {"volumes": list(entries)}}
    setting = volumes.Setting(pod, tmp_path, "c", {}, host_paths, {}, lambda kind, name: None, {})
    return volumes.prepare(setting)


def test_a_host_path_may_be_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "Ascend/driver").mkdir(parents=True)
    maps = {"/usr/local/Ascend": str(tmp_path / "Ascend")}
    driver = {"name": "driver", "hostPath": {"path": "/usr/local/Ascend/driver/"}}
    other = {"name": "etc", "hostPath": {"path": "/etc"}}
    assert prepared(tmp_path, maps, driver, other) == {"driver": str(tmp_path / "Ascend/driver"), "etc": "/etc"}
    with pytest.raises(volumes.MountError, match="does not exist"):
        prepared(tmp_path, maps, {"name": "x", "hostPath": {"path": "/usr/local/Ascend/add-ons"}})


def test_directories_stand_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "nfs").mkdir()
    file = tmp_path / "nodes.yaml"
    file.write_text("nodes: [{}]\nnfs: {'nas:/data': nfs}\n")
    assert plan.directories(file, "nfs") == {"nas:/data": str(tmp_path / "nfs")}
    assert plan.directories(file, "hostPaths") == {}
    file.write_text("nodes: [{}]\nnfs: {'nas:/a': no, 'nas:/b': such}\nhostPaths: [x]\n")
    with pytest.raises(UsageError) as refused:
        plan.directories(file, "nfs")
    assert len(refused.value.problems) == 2
    with pytest.raises(UsageError, match="a mapping is expected"):
        plan.directories(file, "hostPaths")
