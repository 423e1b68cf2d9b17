"""Which devices a container gets, when init containers want some, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onward.local.node.devices import Devices, NotEnough, device_annotations

NPU = "huawei.com/Ascend910"


def wants(name: str, count: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": {NPU: str(count)}}, **more}


def test_what_an_init_container_had_those_after_it_have(tmp_path: Path) -> None:
    file = tmp_path / "devices.json"
    pod = {"initContainers": [wants("check", 2), wants("more", 4)], "containers": [wants("a", 3), wants("b", 1)]}
    given = Devices(file, {NPU: "4"}).allocate("pod", pod)
    numbers = {name: found[NPU] for name, found in given.items()}
    assert numbers == {"check": [0, 1], "more": [0, 1, 2, 3], "a": [0, 1, 2], "b": [3]}
    assert device_annotations(given) == {NPU: "Ascend910-0,Ascend910-1,Ascend910-2,Ascend910-3"}
    again = Devices(file, {NPU: "4"})
    assert again.allocate("pod", pod) == given, "also after a restart"
    with pytest.raises(NotEnough, match="Available: 0"):
        again.allocate("other", {"containers": [wants("a", 1)]})


def test_a_sidecar_keeps_what_it_has(tmp_path: Path) -> None:
    devices = Devices(tmp_path / "devices.json", {NPU: "2"})
    side = wants("side", 1, restartPolicy="Always")
    given = devices.allocate("pod", {"initContainers": [wants("check", 1), side], "containers": [wants("a", 1)]})
    assert {name: found[NPU] for name, found in given.items()} == {"check": [0], "side": [0], "a": [1]}
    with pytest.raises(NotEnough):
        devices.allocate("other", {"initContainers": [side], "containers": [wants("a", 2)]})
