"""AscendJobs to start from, for the tests of this folder."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from onward.api import ascendjob
from onward.api.job import Job, Problem

EXAMPLES = Path(__file__).parents[2] / "examples"
SEED = EXAMPLES / "seeds" / "004-pytorch_multinodes_acjob_910b.yaml"


def seed() -> dict[str, Any]:
    found = yaml.safe_load(SEED.read_text())
    found["metadata"] |= {"namespace": "default", "uid": "c0ffee"}
    return dict(found)


def role(replicas: int = 1, devices: int = 0, **more: Any) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "ascend", "image": "any", "command": ["true"], **more.pop("container", {})}
    if devices:
        container["resources"] = {"limits": {more.pop("device", "huawei.com/Ascend910"): devices}}
    return {"replicas": replicas, "template": {"spec": {"containers": [container], **more.pop("spec", {})}}, **more}


def job(framework: str = "pytorch", **roles: Any) -> dict[str, Any]:
    leader = {"mindspore": "Scheduler", "tensorflow": "Chief"}.get(framework, "Master")
    return {
        "apiVersion": ascendjob.API_VERSION,
        "kind": "AscendJob",
        "metadata": {"name": "gpt", "namespace": "default", "uid": "u-1", "labels": {"framework": framework}},
        "spec": {"replicaSpecs": copy.deepcopy(roles) or {leader: role(), "Worker": role(1)}},
    }


def with_marks(obj: dict[str, Any], labels: dict[str, Any] | None = None, **annotations: Any) -> dict[str, Any]:
    obj["metadata"]["labels"] = {**obj["metadata"].get("labels", {}), **(labels or {})}
    named = {name.replace("_", "-"): value for name, value in annotations.items()}
    obj["metadata"]["annotations"] = {**obj["metadata"].get("annotations", {}), **named}
    return obj


def good(obj: dict[str, Any], **options: Any) -> Job:
    found = ascendjob.read(obj, **options)
    assert isinstance(found, Job), [str(p) for p in found]
    return found


def bad(obj: dict[str, Any], **options: Any) -> list[Problem]:
    found = ascendjob.read(obj, **options)
    assert isinstance(found, list)
    return found
