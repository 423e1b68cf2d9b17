"""Volumes and environment, seen from inside a pod."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from onecluster import MOUNTS, OneCluster

from onward.kube.objects import CONFIGMAPS

OBJECTS = Path(__file__).with_name("files.yaml")


@pytest.fixture(scope="module")
def pods(cluster: OneCluster) -> OneCluster:
    cluster.apply(OBJECTS.read_text().replace("MOUNTS", str(MOUNTS)))
    return cluster


def test_volumes(pods: OneCluster) -> None:
    pods.until(lambda: pods.container("files-volumes").get("state", {}).get("running"), "it runs")
    pods.until(lambda: "done" in pods.logs("files-volumes"), "it has read everything")
    lines = pods.logs("files-volumes").splitlines()
    assert lines[0] == f"{MOUNTS}/empty/made/for/it"
    assert lines[1:5] == ["a", "b", "script.sh", "1400"]  # no end of line in the value 1
    assert lines[5:11] == ["s3cret", 'app="files"', "1500", "from nfs", "twoonward", "same time"]
    assert lines[11].endswith("Read-only file system")
    assert lines[12] == "read only"
    assert lines[13].endswith("Read-only file system")
    assert lines[14] == "map, too"
    pods.call(pods.client.patch(CONFIGMAPS, "files-map", {"data": {"a": "changed"}}, "default"))
    pods.phase("files-volumes", "Succeeded")
    assert pods.logs("files-volumes").endswith("changed")
    pods.phase("files-token", "Succeeded")  # the map beside a token changes, too
    assert pods.logs("files-token").splitlines() == ["0", "still"]
    pods.until(lambda: not MOUNTS.exists(), "the places of its volumes are taken away again")


def test_a_user_of_its_own_reads_its_files(pods: OneCluster) -> None:
    pods.phase("files-user", "Succeeded")
    assert pods.logs("files-user").splitlines() == ["/ nobody", "s3cret", "0", "1234 1236"]


def test_volumes_within_volumes(pods: OneCluster) -> None:
    pods.phase("files-nested", "Succeeded")
    *found, said, last = pods.logs("files-nested").split("\n")
    assert found == [".", "./conf", "./conf/a", "./conf/shm", "./deep", "./deep/er", "./one", "./sub"]
    assert (said, last) == ("11in", "1"), "what is read through each of them"
    pods.event("files-nested", "container c: hostPort 8080 is not opened at the node's address")


def test_environment(pods: OneCluster) -> None:
    status = pods.phase("files-env", "Succeeded")
    env = json.loads(pods.logs("files-env"))
    assert env["B"] == "first-$(A)-$(NOPE)-two"
    assert env["arg"] == "first $(A) $(NOPE)"
    assert (env["a"], env["b"], env["S_password"], env["KEY"]) == ("1", "two", "s3cret", "s3cret")
    assert env["IP"] == status["podIP"]
    assert env["XDL_IP"] == status["hostIP"]
    assert env["NPU"] == "Ascend910-0"
    assert env["MEM"] == "64"
    assert "GONE" not in env
    assert env["HOSTNAME"] == "given"
    assert env["KUBERNETES_SERVICE_HOST"] == "10.96.0.1"
    assert env["KUBERNETES_SERVICE_PORT"] == "443"
    assert env["PATH"].split(":")[0] == os.path.dirname(sys.executable)
    assert env["CUDA_VISIBLE_DEVICES"] == "", "the node has devices, and this pod none of them"


def test_what_cannot_be_mounted_is_said(pods: OneCluster) -> None:
    pods.event("files-nohost", "hostPath /no/such/place does not exist on this machine")
    pods.event("files-nonfs", "onward up --nfs other:/x=DIR")
    pods.event("files-novol", 'MountVolume.SetUp failed for volume "v" : configmap "never" not found')
    assert pods.status("files-nonfs")["containerStatuses"][0]["state"]["waiting"]["reason"] == "ContainerCreating"


def test_a_config_map_that_comes_later(pods: OneCluster) -> None:
    def waiting() -> bool:
        state = pods.container("files-nomap").get("state") or {}
        return bool(state.get("waiting", {}).get("reason") == "CreateContainerConfigError")

    pods.until(waiting, "CreateContainerConfigError")
    pods.event("files-nomap", 'configmap "not-yet" not found')
    pods.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: not-yet}, data: {x: y}}")
    pods.phase("files-nomap", "Running")
