"""The YAML of the seeds in examples/seeds: their text with white space removed, and nothing else changed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from acjobs import EXAMPLES, good, seed

from onward.local import plan

DATA = Path(__file__).parent / "seeds"
FILES = sorted((EXAMPLES / "seeds").rglob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_only_white_space_was_restored(file: Path) -> None:
    written = re.sub(r"\s", "", file.read_text())
    assert written == (DATA / f"{file.stem}.txt").read_text().strip()


def test_none_is_missing() -> None:
    assert {file.stem for file in FILES} == {file.stem for file in DATA.iterdir()}


@pytest.mark.parametrize("file", [f for f in FILES if f.parent.name == "seeds"], ids=lambda file: file.stem)
def test_whole_objects_have_their_shape_again(file: Path) -> None:
    (found,) = [doc for doc in yaml.safe_load_all(file.read_text()) if doc]
    roles = found["spec"]["replicaSpecs"]
    for role in roles.values():
        for container in role["template"]["spec"]["containers"]:
            assert {"name", "image", "command", "resources"} <= container.keys()
            assert all(isinstance(word, str) for word in container["command"])


def test_the_sample_job_is_understood() -> None:
    master = good(seed()).replica("Master").template["spec"]
    assert [v["name"] for v in master["volumes"]] == [m["name"] for m in master["containers"][0]["volumeMounts"]]
    rule = master["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
    assert rule["labelSelector"]["matchExpressions"][0]["values"] == ["default-test-pytorch"]


def test_the_file_of_nodes_satisfies_the_sample() -> None:
    file = EXAMPLES / "machine/nodes.yaml"
    nodes = plan.from_file(file, plan.uniform(1, "8", "16Gi", 0)[0])
    job = good(seed())
    assert len(nodes) > job.total  # one is left to go to
    for replica in job.replicas:
        spec = replica.template["spec"]
        for node in nodes:
            assert spec["nodeSelector"].items() <= node.labels.items()
            assert int(node.capacity[replica.device[0]]) == 8
        nfs, hosts = plan.directories(file, "nfs"), plan.directories(file, "hostPaths")
        for volume in spec["volumes"]:
            if "nfs" in volume:
                export, here = next(pair for pair in nfs.items() if "atlas_dls" in pair[0])
                path = f"{volume['nfs']['server']}:{volume['nfs']['path']}"
                assert Path(path.replace(export, here)).is_dir()
            elif "hostPath" in volume and volume["name"] != "localtime":
                assert Path(volume["hostPath"]["path"].replace(*next(iter(hosts.items())))).is_dir()


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("ascendjob-*.yaml")), ids=lambda file: file.stem)
def test_our_own_job_files_are_good(file: Path) -> None:
    job = good(yaml.safe_load(file.read_text()))
    assert not job.notes
